"""The question which hosts of an inventory are the cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.ansible.inventory import Inventory
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import UsageError
from ftcluster.progress.view import View
from ftcluster.provision import questions, stages
from tests.unit.clusters import VM, cluster
from tests.unit.shell import Said

GROUPS = {"databases": ("db1",), "xeons": ("x1", "x2")}
COMPANY = Inventory((Path("/company.ini"),), ("db1", "x1", "x2"), ("db1", "x1", "x2"), "", GROUPS)


def test_what_is_clear_is_not_asked() -> None:
    assert questions.which_hosts(replace(COMPANY, groups={}), View().ask) == ""


def test_the_question_names_the_groups(said: Said) -> None:
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return "xeons"

    assert questions.which_hosts(COMPANY, answer) == "xeons"
    said(asked[0])
    with pytest.raises(UsageError) as error:
        questions.which_hosts(COMPANY, View().ask)
    said(error.value)
    many = {f"tag_{number}": ("x1",) for number in range(100)}
    with pytest.raises(UsageError) as error:
        questions.which_hosts(replace(COMPANY, groups=many), View().ask)
    assert "tag_19: x1\n  ..." in error.value.message


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the patterns with which the inventory is read."""
    patterns: list[str] = []

    def read_inventory(_paths: object, _options: object, pattern: str) -> Inventory:
        patterns.append(pattern)
        return replace(COMPANY, pattern=pattern, groups={} if pattern else GROUPS)

    monkeypatch.setattr(stages, "read_inventory", read_inventory)
    return patterns


def test_the_answer_is_the_pattern(monkeypatch: pytest.MonkeyPatch, read: list[str]) -> None:
    monkeypatch.setattr(stages, "which_hosts", lambda *_: "xeons")
    inventory, known = stages.address(COMPANY.paths, (), View())
    assert (inventory.pattern, known.variables()) == ("xeons", {"ftcluster_hosts": "xeons"})
    assert read == ["", "xeons"]


@pytest.mark.usefixtures("read")
def test_without_an_answer_no_host_is_addressed() -> None:
    with pytest.raises(UsageError):
        stages.address(COMPANY.paths, (), View())
    remember(Cluster(COMPANY.paths, cluster(VM)))  # all hosts were set up
    inventory, _ = stages.address(COMPANY.paths, (), View())
    assert inventory.cluster == COMPANY.cluster
