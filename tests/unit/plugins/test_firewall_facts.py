"""Facts about a host's firewall."""

import pytest
from ansible_collections.ftcluster.cluster.plugins.modules.firewall_facts import (
    PORTS,
    digest_in_force,
    state_of,
)

RULES = """
	set ports {
		type inet_service
		elements = { 29500-29999, 32768-60999 }
	}
		tcp dport @ports counter drop comment "ftcluster 0123"
"""


@pytest.mark.parametrize(
    ("rules", "digest", "state"),
    [(RULES, "0123", "loaded"), (RULES, "4567", "gone"), (RULES, "", "gone"), ("", "", "none")],
)
def test_rules_are_in_force_if_those_of_the_file_are(rules: str, digest: str, state: str) -> None:
    assert state_of(rules, digest) == state


def test_the_closed_ports_are_those_of_the_file() -> None:
    found = PORTS.search(RULES)
    assert found
    assert found[1].strip() == "29500-29999, 32768-60999"


@pytest.mark.parametrize(
    "change", [{"family": "ip"}, {"table": "filter"}, {"comment": "ftcluster: another local user"}]
)
def test_only_our_own_table_has_the_digest(change: dict[str, str]) -> None:
    rule = {"family": "inet", "table": "ftcluster", "chain": "input", "comment": "ftcluster 0a"}
    other = {"rule": {**rule, **change}}
    assert digest_in_force([{"table": {"name": "x"}}, other, {"rule": rule}]) == "0a"
    assert digest_in_force([other]) == ""
