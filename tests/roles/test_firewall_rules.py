"""The firewall's rules in the kernel, against an attacker who crafts packets."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from tests.programs import ROOT
from tests.rights import PYTHON
from tests.roles import fragments

pytestmark = pytest.mark.needs("root", "network", "nft")
RULES = {
    "firewall__hosts4": ["10.0.0.1"],
    "firewall__hosts6": ["fd00::9"],
    "firewall_ports": ["29500-29999", "32768-60999"],
    "firewall__open_ports": [22],
    "firewall__digest": "0a",
    "firewall__account_id": "",
}
PLAIN = {"whole", "whole behind options", "atomic fragment", "header in the first",
         "header in the first, which comes last"}  # fmt: skip
HIDDEN = {
    "without flags", "without the header", "options that end in the second",
    "options of which the second has some", "overlapping", "a fragment in fragments",
}  # fmt: skip


def rendered(folder: Path, **changes: Any) -> str:
    """Return the file of rules as the module template renders it."""
    text = (ROOT / "roles/firewall/templates/firewall.nft.j2").read_text(encoding="utf-8")
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)
    path = folder / "firewall.nft"
    path.write_text(environment.from_string(text).render(RULES | changes))
    return str(path)


def answered(rules: str) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Return the answered packets by port, and how many packets each rule has dropped."""
    script = str(ROOT / "tests/roles/fragments.py")
    done = subprocess.run(
        ["unshare", "--net", PYTHON, "-I", script, rules], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    listed = json.loads(rest[0])["nftables"] if rules else []
    dropped = {
        rule["rule"]["comment"]: part["counter"]["packets"]
        for rule in listed
        if "comment" in rule.get("rule", {})
        for part in rule["rule"]["expr"]
        if "counter" in part
    }
    return json.loads(first), dropped


def test_no_fragments_of_ipv6_get_past_the_rules(tmp_path: Path) -> None:
    """The kernel passes fragments of IPv6 to the rules and reassembles them afterwards."""
    closed, opened = str(fragments.CLOSED), str(fragments.OPEN)
    before, _ = answered("")
    assert set(before) == {closed, opened}
    # without rules, this kernel accepts them
    assert set(before[closed]) >= PLAIN
    assert by_hand(before[closed]) == by_hand(before[opened])
    assert len(before[closed]) > fragments.DRAWN // 10
    after, dropped = answered(rendered(tmp_path))
    assert after[closed] == []
    assert by_hand(after[opened]) == PLAIN, "what a stranger may reach is reached as before"
    # packets whose first fragment shows the port, and the other packets
    assert dropped["ftcluster 0a"] > len(PLAIN)
    assert dropped["ftcluster: a fragment without a port"] >= 2 * (len(HIDDEN) - 2)
    # packets from a host of the cluster are not restricted
    friend, _ = answered(rendered(tmp_path, firewall__hosts6=[fragments.CLIENT]))
    assert friend == before


def by_hand(names: list[str]) -> set[str]:
    """Return the names of packets that were not drawn."""
    return set(names) & (PLAIN | HIDDEN)
