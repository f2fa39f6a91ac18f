"""The check of links between hosts, with real connections between loopback addresses."""

import sys
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.launch import Host, Launch, RankHost
from ftcluster_train.supervisor import link_check
from ftcluster_train.supervisor.link_check import ALL_REACH, Gap, LinkCheck, Links, check_links
from ftcluster_train.supervisor.monitors import Ending
from ftcluster_train.supervisor.rank_launch import explained_by_links
from ftcluster_train.supervisor.rank_life import RankLife, idle_seconds
from ftcluster_train.supervisor.ssh_causes import LINK
from tests.programs import NODE_PATH
from tests.unit.supervisor.test_supervisor import ssh_on_path

HOSTS = tuple(Host(f"xeon{number}", f"127.0.0.{number}") for number in (1, 2, 3))
HEAD, A, B = HOSTS
# replaces ssh: each host is an address of this machine, and its login script prints a line
SSH = 'echo Welcome; {special} exec sh -c "$4"'
CLOSED = "echo 'ftcluster-port 1'; read -r _; echo 'ftcluster-unreached {}'; exec cat"
CUT = (Gap(A, B, 40001, "timed out"), Gap(B, A, 40002, "timed out"))


@pytest.fixture(autouse=True)
def node_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", NODE_PATH)


def check(
    folder: Path, monkeypatch: pytest.MonkeyPatch, special: str = "", seconds: int = 20
) -> Links:
    ssh_on_path(folder, monkeypatch, SSH.replace("{special}", special))
    return check_links(HOSTS, "/opt/mesh/ssh_config", Path(sys.prefix), seconds)


def test_hosts_that_reach_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = check(tmp_path, monkeypatch)
    assert links == Links(HOSTS)
    assert (links.sentence(), links.refused()) == (ALL_REACH, [])


def test_a_port_at_which_nobody_listens_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = check(tmp_path, monkeypatch, f"[ $3 != {B.address} ] || {{ {CLOSED}; }};")
    assert [(gap.host, gap.other, gap.port) for gap in links.gaps] == [(HEAD, B, 1), (A, B, 1)]
    refused = "(127.0.0.3:1: Connection refused)"
    assert links.sentence() == (
        f"xeon1 cannot reach xeon3 {refused}, but xeon3 reaches xeon1; "
        f"xeon2 cannot reach xeon3 {refused}, but xeon3 reaches xeon2; both reach the head"
    )
    [failure] = links.refused()
    assert (failure.host, failure.cause, failure.lasting) == (B, LINK, False)


def test_a_host_without_a_response_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = check(tmp_path, monkeypatch, f"[ $3 != {B.address} ] || exec sleep 9;", seconds=2)
    assert (links.gaps, links.silent) == ((), (B,))
    assert links.sentence() == "no response from xeon3 to a check of the links"


def test_a_message_names_few_pairs() -> None:
    hosts = tuple(Host(f"n{number}", f"10.0.0.{number}") for number in range(6))
    gaps = tuple(Gap(hosts[1], other, 9, "timed out") for other in hosts[2:])
    links = Links(hosts, gaps)
    assert links.sentence().count("cannot reach") == 3
    assert links.sentence().endswith("; pairs that cannot connect either: 1 more")
    assert [failure.host.name for failure in links.refused()] == ["n1"]


def test_the_ranks_that_wait_are_not_blamed_for_a_link() -> None:
    error: dict[str, Any] = {
        "message": "hung in saving: no rank has used its CPU", "hint": "its Python stacks: ...",
        "host": "xeon1", "rank": 0, "step": 304, "cause": "hung",
    }  # fmt: skip
    hung = Ending("failed", 1, [error], restartable=True)
    [blamed] = explained_by_links(hung, Links(HOSTS, CUT)).errors
    assert (blamed["host"], blamed["rank"], blamed["cause"]) == ("xeon2", None, "link")
    assert blamed["message"] == (
        "xeon2 cannot reach xeon3 (127.0.0.3:40001: timed out), and xeon3 cannot reach xeon2; both "
        "reach the head; the ranks wait for each other at step 304"
    )
    [kept] = explained_by_links(hung, Links(HOSTS)).errors
    assert kept == {**error, "message": f"{error['message']}; {ALL_REACH}"}
    # for a rank that has reported a timeout itself
    reported = Ending("failed", 1, [{**error, "cause": "exit"}])
    explained = explained_by_links(reported, Links(HOSTS, CUT))
    assert [fields["cause"] for fields in explained.errors] == ["link", "exit"]
    assert explained.restartable
    assert explained_by_links(reported, Links(HOSTS)) == reported


def test_a_link_that_is_back_before_the_ranks_count_as_hung_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hosts are checked when the ranks have been idle for half of the limit."""
    results = [Links(HOSTS, CUT), Links(HOSTS)]
    monkeypatch.setattr(link_check, "check_links", lambda *_: results.pop(0))
    launch = Launch("/r", (), {}, tuple(RankHost(h.name, h.address) for h in HOSTS), "config", "")
    check = LinkCheck(launch)
    for idle in (0.0, 4.9, 5.1, 6.0, 10.1):
        check.watch(idle)
    assert check.result().gaps == CUT
    check.watch(0.2)  # a rank is active again
    check.watch(5.1)
    assert check.result().gaps == ()
    assert results == []


def test_ranks_are_idle_together_or_not_at_all() -> None:
    lives = [RankLife(rank, "xeon1", "127.0.0.1", heard=9.0, busy=busy) for rank, busy in
             enumerate((1.0, 4.0))]  # fmt: skip
    assert idle_seconds(lives, 9.0) == 5.0
    lives[0].heard = None
    assert idle_seconds(lives, 9.0) == 0.0
