"""Local ports of a host, its services, and what preflight says of them."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.ftcluster.cluster.plugins.filter.host_problems import host_problems
from ansible_collections.ftcluster.cluster.plugins.filter.services import services
from ansible_collections.ftcluster.cluster.plugins.filter.switch import switch
from ansible_collections.ftcluster.cluster.plugins.module_utils.ports import (
    listeners,
    local_ports,
)

from ftcluster_common.launch import MPI_PORTS, RENDEZVOUS_PORTS
from tests.programs import ROOT
from tests.unit.plugins.test_host_problems import GOOD, REQUIRED

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
TCP = HEAD + (
    "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 1\n"
    "   1: 0100007F:9C40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n"
    "   2: 0A0012C6:0016 0100A8C0:C350 01 00000000:00000000 00:00000000 00000000     0        0 1\n"
    "   3: 0A0012C6:9C41 00000000:0000 0A 00000000:00000000 00:00000000 00000000   106        0 1\n"
)
TCP6 = HEAD + "".join(
    f"   0: {address}:{port} {'0' * 32}:0000 0A 0:0 00:0 0 {user} 0 1\n"
    for address, port, user in (
        ("0" * 32, "1F90", 34),
        ("0" * 24 + "01000000", "9C42", 0),
        ("0000000000000000FFFF00000100007F", "9C43", 0),
    )
)


def files(**texts: str) -> Callable[[str], str]:
    return lambda path: texts.get(path.rpartition("/")[2], "")


def test_reserved_ports_are_given_to_nobody() -> None:
    assert local_ports(files()) == ["32768-60999"]
    assert local_ports(files(ip_local_port_range="20000\t30000\n")) == ["20000-30000"]
    reserved = files(ip_local_port_range="1024 65535", ip_local_reserved_ports="1024,8080-8081\n")
    assert local_ports(reserved) == ["1025-8079", "8082-65535"]


def test_listeners_that_other_hosts_reach() -> None:
    assert listeners(files(tcp=TCP, tcp6=TCP6)) == {8080: {33, 34}, 40001: {106}}
    assert listeners(files()) == {}


def found(port: int, closed: list[str], known: list[Any]) -> dict[str, list[str]]:
    facts = {"services": [{"port": port, "user": "www-data"}]}
    result: dict[str, list[str]] = services(facts, closed, known)
    return result


def test_a_service_at_a_port_that_somebody_chose_is_a_problem() -> None:
    [problem] = found(8080, ["29500-29999", "1024-65535"], [22])["problems"]
    assert "would close these ports" in problem
    assert "8080 (of www-data); say which is meant: " in problem
    assert "ftcluster_firewall_open_ports=[8080]" in problem
    assert "ftcluster_firewall_ports=[8080] closes it" in problem
    for known in ([22, 8080], ["8000-8100"]):
        assert found(8080, ["1024-65535"], known) == {"problems": [], "notices": []}
    assert found(8080, ["29500-29999", "32768-60999"], []) == {"problems": [], "notices": []}


def test_a_service_among_the_usual_local_ports_is_a_notice() -> None:
    result = found(40001, ["29500-29999", "32768-60999"], [22])
    assert result["problems"] == []
    assert "closes these ports" in result["notices"][0]
    assert found(40001, [], []) == {"problems": [], "notices": []}


@pytest.mark.parametrize(
    ("given", "meant"),
    [(True, "true"), ("yes", "true"), (False, "false"), ("False", "false"),
     (0, "false"), ("required", "required"), (" Required ", "required")],
)  # fmt: skip
def test_words_of_a_switch(given: Any, meant: str) -> None:
    assert switch(given, "ftcluster_root") == meant


@pytest.mark.parametrize("word", ["requird", "", None, "tru"])
def test_a_misspelled_word_switches_nothing_off(word: Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"ftcluster_root is '.*'; set it to true, false"):
        switch(word, "ftcluster_root")


@pytest.mark.parametrize(
    ("required", "begins"),
    [({"root": True}, "root is required, but cannot be had here: there is no sudo; "),
     ({"firewall": True}, "the firewall is required and needs root, which cannot be had here: "),
     ({"root": True, "firewall": True}, "root is required"),
     ({}, None)],
)  # fmt: skip
def test_a_host_without_the_root_that_is_required(
    required: dict[str, bool], begins: str | None
) -> None:
    bare = {**GOOD, "can_become_root": False, "no_root_because": "there is no sudo"}
    problems = host_problems(bare, {**REQUIRED, **required})
    assert len(problems) == (begins is not None)
    if begins:
        assert problems[0].startswith(begins)
        assert "; give it" in problems[0]
    assert host_problems({**bare, "can_become_root": True}, {**REQUIRED, **required}) == []


def test_a_password_that_sudo_refuses_is_a_problem_whatever_is_required() -> None:
    [problem] = host_problems({**GOOD, "can_become_root": False, "wrong_password": True}, REQUIRED)
    assert problem.startswith("sudo refuses the password")


def test_the_ports_of_a_launch_are_those_that_other_local_users_do_not_get_to() -> None:
    defaults = yaml.safe_load((ROOT / "roles/firewall/defaults/main.yml").read_text())
    [text] = defaults["firewall_account_ports"]
    system = (ROOT / "playbooks/system.yml").read_text()
    assert f'firewall_account_ports: ["{text}"]' in system
    first, last = map(int, text.split("-"))
    assert {*range(first, last + 1)} == {*RENDEZVOUS_PORTS, *MPI_PORTS}
