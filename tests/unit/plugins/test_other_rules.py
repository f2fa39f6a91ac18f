"""Clusters that share a host and its single table of rules."""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.filter.other_rules import other_rules
from ansible_collections.ftcluster.cluster.plugins.modules.host_facts import other_clusters

from tests.unit.shell import Said

OTHER = {"prefix": "/srv/other", "user": "ftcluster"}
OURS = ["10.0.0.1", "10.0.0.2"]
FACTS = {"other_clusters": [OTHER], "firewall_hosts": OURS[:1], "rank_user": "ftcluster"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"other_clusters": []},
        # its own rule, for a host that has left
        {"other_clusters": [], "firewall_hosts": ["10.0.0.9"]},
        {"firewall_hosts": []},
        {"firewall_hosts": ["10.0.0.9"], "closes": False},
    ],
)
def test_the_same_hosts_and_account_share_the_rules(changes: dict[str, Any]) -> None:
    assert other_rules(FACTS | changes, OURS, changes.get("closes", True)) == []


@pytest.mark.parametrize(
    ("changes", "whom"),
    [
        ({"firewall_hosts": ["10.0.0.1", "10.0.0.9"]}, "10.0.0.9"),
        ({"other_clusters": [OTHER | {"user": "research"}]}, "account research"),
        # also without rules, because another account would get its home
        ({"other_clusters": [OTHER | {"user": "research"}], "closes": False}, "account research"),
    ],
)
def test_rules_that_another_cluster_needs_are_not_replaced(
    changes: dict[str, Any], whom: str
) -> None:
    [found] = other_rules(FACTS | changes, OURS, changes.get("closes", True))
    assert whom in found["what"]
    assert "/srv/other" in found["what"]
    assert "10.0.0.1," not in found["what"]
    assert found["hint"]


def test_a_login_user_whom_the_rules_of_a_cluster_keep_from_its_ports(said: Said) -> None:
    facts = FACTS | {"rank_user": "", "user": r"CORP\joe.roe", "is_root": False}
    [found] = other_rules(facts, OURS, closes=False)
    said(f"{found['what']}; {found['hint']}")
    for changes in ({"is_root": True}, {"firewall_hosts": []}, {"other_clusters": []}):
        assert other_rules(facts | changes, OURS, closes=False) == []


def test_the_records_of_other_clusters(tmp_path: Path) -> None:
    for name, text in {
        "a": "/opt/ftcluster ftcluster\n", "b": "/srv/b c research\n", "c": "", "d": "/srv\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    found = other_clusters("/opt/ftcluster", tmp_path)
    assert found == [{"prefix": "/srv/b c", "user": "research"}]
    assert other_clusters("/opt/ftcluster", tmp_path / "none") == []
