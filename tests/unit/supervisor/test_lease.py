"""One run per host: real processes compete for real locks; scripts replace mpirun and ssh."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.launch import Launch
from ftcluster_train.supervisor import lease
from ftcluster_train.supervisor.lease import UNIT
from ftcluster_train.supervisor.leases import Leases
from ftcluster_train.supervisor.tickets import ticket_name
from tests.programs import NODE_PATH, wait_for
from tests.unit.supervisor.test_supervisor import (
    NODES,
    errors,
    events,
    launch,
    processes_of,
    ssh_on_path,
    supervisor,
    until_end,
)

NAME = "quickstart-20260131-101500-7f3a"
# a host with a separate folder for runs, which has the head's stack
SSH = (
    "mkdir -p {folder}/$3\n"
    'exec sh -c "$(printf %s "$4" | sed s,{folder},{folder}/$3,g)"'
)  # fmt: skip


class Holder:
    """A process that holds a lease, started like a supervisor starts it."""

    def __init__(self, runs: Path, run: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftcluster_train.host.lease", "hold", str(runs), run,
             "300", *options],
            env={**os.environ, "PYTHONPATH": NODE_PATH}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def ask(self) -> str:
        assert self.process.stdout
        self.say("ask")
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


LAUNCH = Launch("/runs/r-1", (), {}, tuple(NODES[:1]), "", "/stack")
OPEN_HOST = """
import sys
from pathlib import Path
from ftcluster_train.supervisor import lease
lease.RULES = Path(sys.argv.pop(1))
sys.exit(lease.main())
"""


@pytest.mark.parametrize(("code", "found"), [(0, False), (1, False), (3, True), (4, True)])
def test_a_host_whose_rules_were_not_loaded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, found: bool
) -> None:
    """systemd, here a program, reports it each time that the supervisor asks for the host."""
    systemctl, rules = tmp_path / "systemctl", tmp_path / "firewall.nft"
    systemctl.write_text(f'#!/bin/sh\n[ "$*" = "is-active --quiet {UNIT}" ] && exit {code}\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", NODE_PATH)

    def command(*_: object) -> list[str]:
        words = ["hold", str(tmp_path), NAME, "300"]
        return [sys.executable, "-c", OPEN_HOST, str(rules), *words]

    monkeypatch.setattr(Leases, "_command", command)
    leases, wanted = Leases(share=False), replace(LAUNCH, run_dir=str(tmp_path / NAME))
    try:
        for there in (False, True):
            if there:
                rules.touch()
            assert leases.take(wanted, tmp_path) == []
            assert leases.without_rules == ([NODES[0].name] if there and found else [])
    finally:
        leases.release()


STOPPING_HOST = """
import sys
from pathlib import Path
from ftcluster_train.io import shutdown
shutdown.SYSTEMD = Path("/")
from ftcluster_train.supervisor import lease
sys.exit(lease.main())
"""


def test_a_host_that_shuts_down_gets_no_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart follows within a second, while the host still responds."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text('#!/bin/sh\n[ "$*" = is-system-running ] && echo stopping; exit 1\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", NODE_PATH)

    def command(*_: object) -> list[str]:
        return [sys.executable, "-c", STOPPING_HOST, "hold", str(tmp_path), NAME, "300"]

    monkeypatch.setattr(Leases, "_command", command)
    leases = Leases(share=False)
    try:
        [refused] = leases.take(replace(LAUNCH, run_dir=str(tmp_path / NAME)), tmp_path)
        assert (refused.host, refused.reason) == (NODES[0], "it is shutting down")
        assert not refused.in_use
    finally:
        leases.release()


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[list[Holder]]:
    found = [Holder(tmp_path, NAME), Holder(tmp_path, "other")]
    yield found
    for one in found:
        one.end()


def test_the_kernel_frees_what_a_killed_owner_held(holders: list[Holder], tmp_path: Path) -> None:
    first, second = holders
    assert lease.running(tmp_path) == ""
    assert first.ask() == first.ask() == "held"
    assert lease.running(tmp_path).startswith(f"run {NAME} is using it (since ")
    assert re.fullmatch(rf"taken 0 run {NAME} is using it \(since \d\d:\d\d UTC\)", second.ask())
    assert (tmp_path / ".lease").stat().st_mode & 0o027 == 0
    first.process.kill()
    first.process.wait()
    assert lease.running(tmp_path) == ""
    assert second.ask() == "held"
    assert lease.running(tmp_path).startswith("run other is using it")


def test_a_lease_lasts_as_long_as_processes_of_the_run(
    holders: list[Holder], tmp_path: Path
) -> None:
    run = f"run-{os.getpid()}-{time.monotonic_ns()}"
    owner = Holder(tmp_path, run)
    rank = subprocess.Popen(["sleep", "60"], env={**os.environ, "FTCLUSTER_RUN": run})
    try:
        assert owner.ask() == "held"
        owner.process.send_signal(signal.SIGTERM)  # its supervisor decides
        assert owner.process.stdin
        owner.process.stdin.close()
        assert holders[1].ask().startswith(f"taken 0 run {run} ")
        restarted = Holder(tmp_path, run)
        restarted.say("ask")
        # the run waits longer for its own ranks than for other ranks
        time.sleep(2 * lease.LOOK_SECONDS)
        rank.kill()
        assert restarted.process.stdout
        assert restarted.process.stdout.readline() == "held\n"
        restarted.end()
    finally:
        rank.kill()
        rank.wait()
        owner.process.wait(10)


def test_a_supervisor_that_is_silent_is_gone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ftcluster_train.host.lease", "hold", str(tmp_path), NAME,
         "0.3"],
        env={**os.environ, "PYTHONPATH": NODE_PATH}, stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.wait(10) == 0
    process.communicate()


def test_a_run_that_shares_takes_the_lease_once_it_is_free(
    holders: list[Holder], tmp_path: Path
) -> None:
    sharing = Holder(tmp_path, "sharing", "--share")
    try:
        assert holders[0].ask() == "held"
        assert sharing.ask().startswith("taken ")
        holders[0].end()
        sharing.say("")
        wait_for(lambda: "sharing" in lease.running(tmp_path))
    finally:
        sharing.end()


def test_who_has_it_is_said_with_the_day(tmp_path: Path) -> None:
    assert lease.described("") == "another run is using it"
    since = "(since 2023-11-14 22:13 UTC)"  # written by a version that wrote one line
    assert lease.described("other 1700000000\n") == f"run other is using it {since}"
    owner = Holder(tmp_path, "a-1", "--by", "ops on\nbastion")
    try:
        assert owner.ask() == "held"
        owner.say(f"ends {int(time.time()) + 3600}")
        wait_for(lambda: "until about" in lease.running(tmp_path))
        assert lease.running(tmp_path).startswith("run a-1 of ops on bastion is using it (since ")
    finally:
        owner.end()


def queued(runs: Path, run: str, time_: float) -> Holder:
    return Holder(runs, run, "--queue", ticket_name(time_, run))


def test_the_run_that_was_queued_first_is_the_next_one(tmp_path: Path) -> None:
    owner = Holder(tmp_path, "a-1")
    assert owner.ask() == "held"
    late, early = queued(tmp_path, "c-3", 3), queued(tmp_path, "b-2", 2)
    barging = Holder(tmp_path, "d-4")
    try:
        assert early.ask().startswith("taken 1 run a-1 is using it (since ")
        assert re.fullmatch(r"taken 2 run a-1 is .*; run b-2 waits for it", late.ask())
        assert lease.usage(tmp_path).endswith("; runs b-2, c-3 wait for it")
        owner.end()
        # the host is free, but another run is first in the queue
        assert late.ask() == "taken 2 run b-2 waits for it"
        assert barging.ask() == "taken 0 runs b-2, c-3 wait for it"
        assert early.ask() == "held"
        # the run returns the host, because another host is in use, and keeps its place
        early.say("free")
        wait_for(lambda: lease.running(tmp_path) == "")
        assert late.ask() == "taken 2 run b-2 waits for it"
        # a killed run loses its place
        early.end()
        assert late.ask() == "held"
        assert lease.usage(tmp_path).startswith("run c-3 is using it")
        late.end()
        assert barging.ask() == "held"
        assert list((tmp_path / ".queue").iterdir()) == []
    finally:
        for holder in (owner, late, early, barging):
            holder.end()


def test_a_place_is_taken_before_the_lease_and_survives_a_removed_file(tmp_path: Path) -> None:
    first, second = queued(tmp_path, "a-1", 1), queued(tmp_path, "b-2", 2)
    try:
        for _ in range(2):
            first.say("place")
            assert first.process.stdout
            assert first.process.stdout.readline() == f"taken 1 {lease.FREE}\n"
            assert second.ask() == "taken 2 run a-1 waits for it"
            for file in (tmp_path / ".queue").iterdir():
                file.unlink()
            assert first.ask() == "held"
            first.say("free")
            wait_for(lambda: lease.running(tmp_path) == "")
            assert second.ask() == "taken 2 run a-1 waits for it"
    finally:
        first.end()
        second.end()


def holding(runs: Path) -> list[int]:
    """Return the ids of processes that hold the lease or wait for it."""
    mark = b"\0".join((b"ftcluster_train.host.lease", b"hold", bytes(runs), b""))
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            if mark in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_a_restart_keeps_the_lease_or_takes_it_again(
    holders: list[Holder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", NODE_PATH)
    before = {holder.process.pid for holder in holders}

    def owner_alone() -> int:
        """A forked process briefly has the command line of its parent."""
        wait_for(lambda: len(set(holding(tmp_path)) - before) == 1)
        [owner] = set(holding(tmp_path)) - before
        return owner

    launch = Launch(str(tmp_path / "run"), (), {}, tuple(NODES[:1]), "", "", timeout_seconds=3)
    leases = Leases(share=False)
    try:
        assert leases.take(launch, Path(sys.prefix)) == []
        owner = owner_alone()
        assert leases.take(launch, Path(sys.prefix)) == []
        assert owner_alone() == owner
        os.kill(owner, signal.SIGKILL)
        wait_for(lambda: lease.running(tmp_path) == "")
        assert leases.take(launch, Path(sys.prefix)) == []
        assert holders[1].ask().startswith("taken 0 run run is using it")
        owner = owner_alone()
        os.kill(owner, signal.SIGSTOP)
        [refusal] = leases.take(launch, Path(sys.prefix))
        assert "no answer within 1.5 s" in refusal.reason
        assert leases.take(launch, Path(sys.prefix)) == []
    finally:
        leases.release()
    wait_for(lambda: set(holding(tmp_path)) == before)


# --- supervisors


def launched(folder: Path, name: str, script: str, **more: Any) -> Path:
    """Launch a shell script as a run of a cluster by a supervisor; return the run's folder."""
    run_dir = folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}"
    run_dir.mkdir()
    launch(run_dir, script, **{"hosts": [replace(NODES[0], name="head")], **more})
    return run_dir


def phases(run_dir: Path) -> str:
    return "; ".join(str(event["doing"]) for event in events(run_dir) if event["event"] == "phase")


def test_a_second_run_is_refused_by_name_and_one_that_shares_is_not(tmp_path: Path) -> None:
    first = launched(tmp_path, "first", "sleep 60")
    wait_for(lambda: "starting" in phases(first))
    second = launched(tmp_path, "second", f"touch {tmp_path}/started")
    end = until_end(second)
    assert (end["state"], end["exit_code"]) == ("failed", 1)
    [error] = errors(second)
    assert str(error["message"]).startswith(f"head: run {first.name} is using it (since ")
    assert "--queue" in str(error["hint"])
    assert not (tmp_path / "started").exists()
    third = launched(tmp_path, "third", f"touch {tmp_path}/started", share_hosts=True)
    assert until_end(third)["state"] == "done"
    assert (tmp_path / "started").exists()
    assert supervisor("stop", first).stdout.splitlines()[0] == "stopped"
    fourth = launched(tmp_path, "fourth", "true")  # starts at once
    assert until_end(fourth)["state"] == "done"


def test_runs_that_wait_go_on_one_after_the_other_or_are_stopped(tmp_path: Path) -> None:
    order = tmp_path / "order"
    first = launched(tmp_path, "first", "sleep 60")
    wait_for(lambda: "starting" in phases(first))
    waiting = []
    for place, name in enumerate(("interrupted", "waiting1", "waiting2", "waiting3"), start=1):
        more: dict[str, Any] = {"restarts": 1} if name == "interrupted" else {"wait": True}
        run = launched(tmp_path, name, f"echo {name} >> {order}; sleep 0.2", **more)
        text = f"waiting (place {place} in the queue): head: run {first.name} is using it"
        wait_for(lambda run=run, text=text: text in phases(run))
        waiting.append(run)
    assert supervisor("stop", waiting[2]).stdout.splitlines()[0] == "stopped"
    assert until_end(waiting[2])["state"] == "stopped"
    wait_for(lambda: phases(waiting[3]).rpartition("waiting (")[2].startswith("place 3 "))
    os.kill(int((first / "supervisor.pid").read_text()), signal.SIGKILL)
    for run in (waiting[0], waiting[1], waiting[3]):
        assert until_end(run)["state"] == "done"
    assert order.read_text().split() == ["interrupted", "waiting1", "waiting3"]
    assert processes_of(first.name) == []


def test_another_host_is_refused_by_its_name_and_the_head_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_on_path(tmp_path, monkeypatch, SSH.format(folder=tmp_path))
    (tmp_path / NODES[2].address).mkdir()
    other = Holder(tmp_path / NODES[2].address, NAME)
    try:
        assert other.ask() == "held"
        refused = launched(tmp_path, "refused", "true", hosts=NODES)
        assert until_end(refused)["state"] == "failed"
        [error] = errors(refused)
        assert error["host"] == "node3"
        assert str(error["message"]).startswith(f"node3: run {NAME} is using it (since ")
        waits = launched(tmp_path, "waits", f"cat {tmp_path}/*/.lease", wait=True, hosts=NODES)
        wait_for(lambda: "waiting (place 1 in the queue): node3" in phases(waits))
        wait_for(lambda: lease.running(tmp_path) == "")
    finally:
        other.end()
    assert until_end(waits)["state"] == "done"
    assert (waits / "ranks.log").read_text().count(waits.name) == 2
    for folder in (tmp_path, *(tmp_path / host.address for host in NODES[1:])):
        assert lease.running(folder) == ""


def test_a_spare_is_taken_with_the_hosts_and_kept_but_not_needed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", NODE_PATH)
    ssh_on_path(tmp_path, monkeypatch, SSH.format(folder=tmp_path))
    (tmp_path / NODES[2].address).mkdir()
    launch = Launch(
        str(tmp_path / "run"), (), {}, tuple(NODES[:2]), "/ssh_config", "",
        idle=(NODES[2],), spares=1,
    )  # fmt: skip
    other = Holder(tmp_path / NODES[2].address, NAME)
    leases = Leases(share=False)
    try:
        assert other.ask() == "held"
        [refusal] = leases.take(launch, Path(sys.prefix))
        assert (refusal.host, refusal.in_use) == (NODES[2], True)
        assert leases.take(replace(launch, restarts=1), Path(sys.prefix)) == []
        leases.release()
        other.end()
        leases = Leases(share=False)
        for restarts in range(2):
            assert leases.take(replace(launch, restarts=restarts), Path(sys.prefix)) == []
            assert "run run is using it" in lease.running(tmp_path / NODES[2].address)
    finally:
        leases.release()
        other.end()
