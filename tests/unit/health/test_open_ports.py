"""The control node's connections to ports that the ranks of verify open."""

import json
import socket
import time
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.action import verify
from ansible_collections.ftcluster.cluster.plugins.filter.verify_table import guard

from ftcluster_common.protocol.launch import Host
from ftcluster_train.health.consistency import open_to_outsiders
from ftcluster_train.health.open_ports import accept_connections
from tests.programs import free_ports, wait_for

HOSTS = (Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2"))


def test_connections_are_recorded_with_their_addresses() -> None:
    called, silent = free_ports(2)
    with (
        socket.create_server(("", 0)) as taken,
        accept_connections([called, silent, taken.getsockname()[1]]) as found,
    ):
        for _ in range(2):
            socket.create_connection(("127.0.0.1", called), timeout=5).close()
        wait_for(lambda: found.came[called])
    assert found.came == {called: ["127.0.0.1"], silent: []}
    assert found.seconds > 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", called), timeout=5)


def test_who_comes_behind_many_strangers_is_recorded() -> None:
    [port] = free_ports(1)
    with accept_connections([port]) as found:
        for _ in range(500):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        source = ("127.0.0.2", 0)
        socket.create_connection(("127.0.0.1", port), timeout=5, source_address=source).close()
        wait_for(lambda: found.came[port][1:])
    assert found.came == {port: ["127.0.0.1", "127.0.0.2"]}


def test_the_caller_gets_in_where_it_may_and_waits_for_the_ranks_to_listen() -> None:
    later, nobody = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as ssh:
        hosts = [("a", "127.0.0.1", ssh.getsockname()[1]), ("b", "127.0.0.1", nobody)]
        with verify.Caller(hosts, {"a": [later], "b": []}) as caller:
            time.sleep(0.3)
            with accept_connections([later]) as found:
                wait_for(lambda: found.came[later])
            began = time.monotonic()
    assert time.monotonic() - began < 1.5
    assert found.came == {later: ["127.0.0.1"]}
    assert caller.reached == ["a"]


def test_a_port_of_each_range_is_opened() -> None:
    for _ in range(20):
        ours, theirs = verify.ports_to_open(["20000-20001", "30005"])
        assert ours in range(29800, 30000)
        assert theirs in (20000, 20001, 30005)
    assert len(verify.ports_to_open([])) == 1


REPORT: dict[str, Any] = {"hosts": [], "problems": [], "warnings": [], "packages": 0,
                          "all_reduce_ms": None, "backends": {}, "large": {},
                          "links": []}  # fmt: skip
OTHER = {"host": "x", "what": "y", "hint": "", "kind": "z"}  # about a host that was not requested


@pytest.mark.parametrize(
    ("said", "report", "words"),
    [
        (json.dumps(REPORT), REPORT, ""),
        ("no python", None, "no python"),
        (
            json.dumps({**REPORT, "problems": [OTHER]}),
            None,
            "its report is invalid: 'x' is not a host of the request",
        ),
        ('{"hosts": ' + "[" * 60_000, None, "its report is invalid: it is nested too deeply"),
    ],
)
def test_verify_runs_while_the_hosts_are_called(
    monkeypatch: pytest.MonkeyPatch, said: str, report: object, words: str
) -> None:
    entered: list[Any] = []

    class Caller:
        def __init__(self, hosts: Any, ports: Any) -> None:
            self.reached = ["b", "a"]
            entered.append((hosts, ports))

        def __enter__(self) -> "Caller":
            return self

        def __exit__(self, *_: Any) -> None:
            entered.append("left")

    class Task:
        def __init__(self) -> None:
            host = {"name": "a", "address": "10.1.1.1", "ssh_port": "22", "local_ports": ["9"]}
            self.args = {"python": "/s/bin/python", "request": {"hosts": [host]}, "calls": [host]}

    def execute(_: Any, command: str, data: bytes) -> dict[str, Any]:
        entered.append((command, data.decode()))
        return {"stdout": f"a banner\nftcluster-report:\r\n{said}", "rc": 0}

    action: Any = verify.ActionModule.__new__(verify.ActionModule)
    action._task, action._compute_environment_string = Task(), lambda: "A=b"
    monkeypatch.setattr(verify, "execute", execute)
    monkeypatch.setattr(verify, "Caller", Caller)
    monkeypatch.setattr(verify.ActionBase, "run", lambda *_: {})
    result = action.run(None, {})
    assert words in result.pop("said")
    assert result == {"report": report, "changed": False, "reached": ["a", "b"]}
    (hosts, ports), (command, request), last = entered
    assert hosts == [("a", "10.1.1.1", 22)]
    assert ports["a"][1] == 9
    assert command.endswith("cd /; A=b /s/bin/python -m ftcluster_train.health.verify")
    assert f'"ports": {{"a": [{ports["a"][0]}, 9]}}' in request
    assert last == "left"


def answers(*came: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [{"rank": rank, "calls": {"seconds": 4.0, "came": one}} for rank, one in enumerate(came)]


def test_a_connection_from_outside_the_cluster_is_a_finding() -> None:
    found = open_to_outsiders(
        HOSTS, answers({"29900": ["198.51.100.7", "10.0.0.2"], "41000": []}, {})
    )
    assert [(one.host, one.kind) for one in found] == [("node1", "firewall")]
    assert "198.51.100.7" in found[0].what
    assert found[0].what.endswith("it reached 29900")
    assert open_to_outsiders(HOSTS, answers({"29900": ["10.0.0.2"]}, {})) == []
    assert open_to_outsiders(HOSTS, [{"rank": 0}]) == []


def test_rules_of_setup_that_are_not_loaded_any_more_are_named() -> None:
    [found] = open_to_outsiders(HOSTS, answers({"29900": ["198.51.100.7"]}, {}), ("node1",))
    assert "/etc/ftcluster/firewall.nft) are not loaded any more" in found.what
    assert found.hint.startswith("run ftcluster setup again")


def row(name: str, address: str, seconds: float = 4.0, **came: list[str]) -> dict[str, Any]:
    return {"name": name, "address": address, "calls": {"seconds": seconds, "came": came}}


def test_what_the_calls_prove() -> None:
    closed = [row("a", "10.0.0.1", p1=[], p2=[]), row("b", "10.0.0.2", p1=[])]
    assert guard(closed, ["a", "b"]) == [
        "the hosts' ports are closed to this machine, which is not one of the hosts"
    ]
    [line] = guard(closed, ["a"])
    assert line.startswith("it was not verified")
    assert "cannot connect directly to b" in line
    assert guard([row("a", "10.0.0.1", 0.5, p1=[])], ["a"])[0].startswith("it was not verified")
    one_of_them = [row("a", "10.0.0.1", p1=["10.0.0.2"]), closed[1]]
    assert "this machine is one of the hosts" in guard(one_of_them, ["a", "b"])[0]
    assert guard([row("a", "10.0.0.1", p1=["198.51.100.7"]), closed[1]], ["a", "b"]) == []
    assert guard([{"name": "a", "address": "10.0.0.1", "calls": None}], ["a"]) == []
