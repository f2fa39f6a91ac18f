"""The hosts that a restart uses, and the launch on them."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ftcluster_common.protocol.launch import Launch, RankCores, RankHost, read_launch
from ftcluster_train.io.events import EventWriter
from ftcluster_train.supervisor import restarts
from ftcluster_train.supervisor.heartbeats import StopRequest
from ftcluster_train.supervisor.leases import Leases
from ftcluster_train.supervisor.metrics_file import MetricsFile
from ftcluster_train.supervisor.monitors import Ending
from ftcluster_train.supervisor.rank_launch import HostsRefused, SupervisedRun
from ftcluster_train.supervisor.restarts import change_notice, hosts_of_restart
from ftcluster_train.supervisor.runs import read_run
from ftcluster_train.supervisor.ssh_causes import KEY_CHANGED, TIMEOUT, Cause
from ftcluster_train.supervisor.ssh_check import HostFailure
from tests.programs import wait_for
from tests.unit.supervisor.test_ssh_causes import printed_by
from tests.unit.supervisor.test_supervisor import (
    LEASE,
    NODES,
    errors,
    events,
    launch,
    notices,
    ssh_on_path,
    until_end,
)

CORES = (RankCores("0", 1), RankCores("1", 1))
HOSTS = tuple(
    RankHost(f"node{number}", f"10.0.0.{number}", CORES[: 1 if number == 2 else 2])
    for number in range(5)
)
LAUNCH = Launch(
    run_dir="/r",
    program=("x",),
    env={},
    hosts=HOSTS[:3],
    ssh_config="",
    stack="/s",
    script=True,
    idle=HOSTS[3:4],
    spares=1,
)
FAILED = Ending("failed", 1, [restarts._killed(LAUNCH)], restartable=True)


@pytest.mark.parametrize(
    ("hosts", "idle", "lost", "min_nodes", "expected"),
    [
        ("012", "", "", 0, "012"),
        ("012", "34", "", 0, "012"),  # spares stay idle
        ("012", "34", "2", 0, "013"),
        # the other hosts keep their ranks; a spare is used before a host is skipped
        ("012", "34", "1", 2, "032"),
        ("012", "34", "12", 0, "034"),
        ("013", "42", "1", 0, "043"),  # the second loss
        ("013", "2", "1", 0, "023"),  # the first lost host is back
        ("012", "3", "23", 0, ""),  # too few hosts
        ("012", "3", "23", 2, "01"),
        ("012", "3", "12", 2, "03"),
        ("012", "3", "123", 2, ""),
        ("012", "3", "0", 1, ""),  # only the head can have the head's ranks
        ("01", "2", "", 2, "012"),  # a skipped host is back
        ("01", "2", "2", 2, "01"),
        ("02", "1", "2", 1, "01"),
        ("02", "1", "2", 0, ""),  # a minimum of 3
    ],
)
def test_hosts_of_a_restart(
    hosts: str, idle: str, lost: str, min_nodes: int, expected: str
) -> None:
    """`idle` are spares without hosts that an earlier restart skipped: `hosts` were 3."""
    chosen, others, gone, wanted = (
        tuple(HOSTS[int(number)] for number in numbers) for numbers in (hosts, idle, lost, expected)
    )
    spares = len(hosts) + len(idle) - 3
    launch = replace(LAUNCH, hosts=chosen, idle=others, spares=spares, min_nodes=min_nodes)
    assert hosts_of_restart(launch, gone) == (wanted or None)


def test_the_launch_on_other_hosts_and_its_notice() -> None:
    assert change_notice(HOSTS[:3], HOSTS[:2], {}) == "continuing without node2"
    assert change_notice(HOSTS[:2], HOSTS[:3], {}) == "using node2 again"
    assert change_notice(HOSTS[:2], HOSTS[:2], {}) == ""
    changed = {HOSTS[1]: HostFailure(HOSTS[1], "its host key has changed", KEY_CHANGED)}
    assert change_notice(HOSTS[:2], (HOSTS[0], HOSTS[3]), changed) == (
        "using node3 in place of node1: its host key has changed"
    )
    moved = LAUNCH.on((HOSTS[0], HOSTS[1], HOSTS[3]))
    assert (len(moved.rank_hosts), moved.nodes, moved.idle) == (6, 3, HOSTS[2:3])
    fewer = moved.on(HOSTS[:2])
    assert (len(fewer.rank_hosts), fewer.nodes, fewer.idle) == (4, 3, (HOSTS[2], HOSTS[3]))
    assert fewer.on(HOSTS[:3]) == LAUNCH


def test_a_spare_at_once_then_the_host_that_is_back_and_else_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start ends with the loss of a worker; hosts that are off do not respond."""
    off: set[RankHost] = set()
    tried: list[str] = []
    announced: list[str] = []
    after = [{HOSTS[1]}, {HOSTS[3]}, {HOSTS[1], HOSTS[3]}]  # hosts that are off after each start

    def run_ranks(launch: Launch, _run: SupervisedRun, notice: str = "") -> Ending:
        tried.append("".join(host.name[-1] for host in launch.hosts))
        if refused := [HostFailure(host, "off", TIMEOUT) for host in launch.hosts if host in off]:
            raise HostsRefused(refused)
        announced.append(notice)
        assert read_launch(tmp_path).hosts == launch.hosts
        if not after:
            return Ending("done", 0, [])
        off.clear()
        off.update(after.pop(0))
        return Ending("failed", 1, [restarts._killed(launch)], restartable=True)

    monkeypatch.setattr(restarts, "run_ranks", run_ranks)
    launch = replace(LAUNCH, run_dir=str(tmp_path), max_restarts=3, min_nodes=2)
    restarts._write(launch)
    run = SupervisedRun(
        Leases(share=False), EventWriter(tmp_path), {}, StopRequest(), MetricsFile(tmp_path)
    )
    began = time.monotonic()
    assert restarts.run_with_restarts(launch, run, again=False).state == "done"
    assert time.monotonic() - began < restarts.HOST_RETRY_SECONDS  # the restart did not wait
    assert tried == ["012", "012", "032", "032", "012", "012", "032", "02"]
    assert announced == [
        "",
        "using node3 in place of node1: off",
        "using node1 in place of node3: off",
        "continuing without node1: off",
    ]


@pytest.mark.parametrize(
    ("cause", "host"), [(TIMEOUT, "node1: timeout"), (None, "node1: it is shutting down")]
)
def test_who_is_waited_for_is_said_until_it_is_back(
    cause: Cause | None, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    def run_ranks(_launch: Launch, _run: SupervisedRun, _notice: str = "") -> Ending:
        if clock.now < 1062:
            raise HostsRefused([HostFailure(HOSTS[1], "it is shutting down", cause)])
        return Ending("done", 0, [])

    monkeypatch.setattr(restarts, "run_ranks", run_ranks)
    monkeypatch.setattr(restarts, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    launch = replace(LAUNCH, run_dir=str(tmp_path), idle=(), spares=0, max_restarts=1)
    restarts._write(launch)
    writer = EventWriter(tmp_path)
    run = SupervisedRun(Leases(share=False), writer, {}, StopRequest(), MetricsFile(tmp_path))
    _, ending = restarts._restart(launch, run, FAILED)
    assert ending.state == "done"
    said = [str(one["doing"]) for one in events(tmp_path)]
    assert said[0] == f"waiting for {host} (0:00 of 2:00)"
    assert said[-1] == f"waiting for {host} (1:00 of 2:00)"
    assert len(said) == 5  # one message every 15 s
    row = read_run(tmp_path, alive=True)
    assert (row.state, row.doing) == ("running", said[-1])


def test_a_restart_without_a_host_says_so(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off, removed = tmp_path / "off", tmp_path / "removed"
    remove = f'case "$4" in "rm -rf "*) echo "$3 $4" > {removed}; exit;; esac'
    refused = "ssh: connect to host 10.0.0.12 port 22: Connection refused"
    refuse = f"[ ! -e {off} ] || {{ echo {refused} >&2; exit 255; }}"
    ssh_on_path(tmp_path, monkeypatch, f"{remove}\n{refuse}\n{LEASE}")
    launch(
        run_dir, f'[ "$2" = 1 ] || {{ touch {off}; kill -9 $$; }}', hosts=NODES[:2], min_nodes=1,
        max_restarts=1,
    )  # fmt: skip
    assert until_end(run_dir)["state"] == "done"
    assert notices(run_dir)[1:] == [
        f"continuing without node2: ssh from the head fails (connection refused): {refused}"
    ]
    wait_for(removed.exists)  # the host may be back by now
    assert removed.read_text() == f"{NODES[1].address} rm -rf {run_dir}/snapshots\n"


def test_a_changed_key_ends_the_run_at_once_although_the_lease_is_still_held(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease's connection is older than the new key, and mpirun needs a new connection."""
    changed = tmp_path / "changed"
    (tmp_path / "message").write_text(printed_by("changed"))
    fails = f"[ -e {changed} ] && {{ cat {tmp_path}/message >&2; exit 255; }}"
    ssh_on_path(tmp_path, monkeypatch, f"case $* in *ftcluster-reached) {fails};; esac\n{LEASE}")
    launch(run_dir, f"touch {changed}; kill -9 $$", hosts=NODES[:2], max_restarts=55)
    began = time.monotonic()
    assert until_end(run_dir)["state"] == "failed"
    assert time.monotonic() - began < restarts.HOST_RETRY_SECONDS
    *_, error = errors(run_dir)
    assert (error["host"], error["rank"]) == ("node2", None)
    assert "its host key has changed since the last setup" in str(error["message"])
    assert "ftcluster setup" in str(error["hint"])
    assert [event["restart"] for event in events(run_dir) if event["event"] == "restart"] == [1]
    assert "its host key has changed" in read_run(run_dir, alive=False).why


def test_mpirun_that_fails_before_a_rank_starts_is_explained_by_another_connection(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = tmp_path / "off"
    (tmp_path / "message").write_text(printed_by("timeout"))
    fails = f"[ -e {off} ] && {{ cat {tmp_path}/message >&2; exit 255; }}"
    ssh_on_path(tmp_path, monkeypatch, f"case $* in *ftcluster-reached) {fails};; esac\n{LEASE}")
    launch(run_dir, f"touch {off}; exit 255", hosts=NODES[:2])
    assert until_end(run_dir)["state"] == "failed"
    [error] = errors(run_dir)
    assert error["host"] == "node2"
    assert "ssh from the head fails (timeout)" in str(error["message"])
