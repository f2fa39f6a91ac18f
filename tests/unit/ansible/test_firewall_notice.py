"""The notices of the role firewall about rules that ufw and firewalld wrote."""

from collections.abc import Callable
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.ftcluster.cluster.plugins.modules.firewall_facts import closing_chains
from jinja2 import Environment

from tests.programs import ROOT
from tests.unit.shell import Said

HOSTS = ["10.0.0.1", "10.0.0.2", "fd00::2"]
VERDICT = {"counter": {"packets": 0, "bytes": 0}}


def chain(family: str, table: str, name: str, policy: str) -> dict[str, Any]:
    base = {"type": "filter", "hook": "input", "prio": 0, "policy": policy}
    return {"chain": {"family": family, "table": table, "name": name, **base}}


def rule(family: str, table: str, name: str, *expr: dict[str, Any]) -> dict[str, Any]:
    return {"rule": {"family": family, "table": table, "chain": name, "expr": list(expr)}}


def accepted(host: str, table: str, name: str) -> dict[str, Any]:
    family = "ip6" if ":" in host else "ip"
    payload = {"payload": {"protocol": family, "field": "saddr"}}
    match = {"match": {"op": "==", "left": payload, "right": host}}
    return rule("inet" if table == "firewalld" else family, table, name, match, {"accept": None})


def ufw(*let_in: str) -> list[dict[str, Any]]:
    found = []
    for family in ("ip", "ip6"):
        found += [
            chain(family, "filter", "INPUT", "drop"),
            rule(family, "filter", "INPUT", VERDICT, {"jump": {"target": "ufw-before-input"}}),
            rule(family, "filter", "INPUT", VERDICT, {"jump": {"target": "ufw-track-input"}}),
        ]
    return [*found, *(accepted(host, "filter", "ufw-user-input") for host in let_in)]


def firewalld(*let_in: str) -> list[dict[str, Any]]:
    place = ("inet", "firewalld", "filter_INPUT")
    reject = {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}
    return [
        chain(*place, "accept"),
        rule(*place, {"jump": {"target": "filter_INPUT_ZONES"}}),
        rule(*place, reject),
        *(accepted(host, "firewalld", "filter_INPUT_ZONES") for host in let_in),
    ]


def notice(ruleset: list[dict[str, Any]]) -> str:
    """Return the notice, or "" if there is none."""
    folder = ROOT / "roles/firewall"
    variables = DataLoader().load_from_file(str(folder / "vars/main.yml"), trusted_as_template=True)
    known = {"firewall_hosts": HOSTS, "firewall_ports": ["29500-29999", "32768-60999"]}
    templar = Templar(loader=DataLoader(), variables={**variables, **known})
    hosts = {
        name: templar.template(variables[name]) for name in ("firewall__hosts4", "firewall__hosts6")
    }
    closing = closing_chains(ruleset, [*hosts["firewall__hosts4"], *hosts["firewall__hosts6"]])
    if not closing:
        return ""
    text = (folder / "templates/notice.j2").read_text()
    # as returned by the lookup plugin
    template = Environment(trim_blocks=True, autoescape=False).from_string(text)
    return template.render({**known, **hosts, "firewall__facts": {"closing": closing}})


@pytest.mark.parametrize("program", [ufw, firewalld])
def test_the_commands_that_let_all_hosts_in(
    program: Callable[..., list[dict[str, Any]]], said: Said
) -> None:
    said(notice(program()))
    assert notice(program(*HOSTS)) == ""
    assert notice(program(*HOSTS[1:]))
    assert notice([]) == ""
