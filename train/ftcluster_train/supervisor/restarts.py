"""Starts a run's ranks again after failures that are not the program's own.

Standard library only: the supervisor uses it.
"""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.launch import LAUNCH_FILE, Host, Launch, RankHost
from ftcluster_common.protocol.run_state import WAITS
from ftcluster_train.io import processes
from ftcluster_train.io.events import seconds_since_first
from ftcluster_train.io.fsync import write_atomically
from ftcluster_train.supervisor import background
from ftcluster_train.supervisor.monitors import Ending
from ftcluster_train.supervisor.rank_launch import HostsRefused, SupervisedRun, run_ranks

HOST_RETRY_SECONDS = 5.0
SAY_SECONDS = 15.0  # between two events that say which hosts are waited for


def run_with_restarts(
    launch: Launch, run: SupervisedRun, again: bool, rebooted: bool = False
) -> Ending:
    """Start the ranks again after a failure that is not the program's own, as often as allowed.

    A training resumes by itself from its newest checkpoint or snapshot. A spare takes the place of
    a host that was lost; where none is left it is left out, if the launch allows that, or awaited.

    Args:
        again: whether another supervisor of the run was killed.
        rebooted: whether that was so because the head was started again.

    Raises:
        HostsRefused, TrainError, Stopped: no rank was started at all.
    """
    began = time.monotonic()
    if again:
        began -= seconds_since_first(Path(launch.run_dir))
        processes.kill_all(launch.run)
        ending = Ending("failed", 1, [_killed(launch, rebooted)], restartable=True)
    else:
        ending = run_ranks(launch, run)
    while ending.restartable and launch.restarts < launch.max_restarts:
        launch = replace(launch, restarts=launch.restarts + 1)
        background.wait_for_space(Path(launch.run_dir))
        _write(launch)
        why = "; ".join(map(place_and_message, ending.errors))
        run.events.write(
            "restart", restart=launch.restarts, max_restarts=launch.max_restarts, message=why
        )
        started = _restart(launch, run)
        if started is None:
            break  # the cause of the first failure is the run's
        launch, ending = started
    return replace(ending, seconds=round(time.monotonic() - began, 2))


def place_and_message(error: dict[str, Any]) -> str:
    """Return an error with its host and rank; an error of a whole host names that host itself."""
    host, message = error["host"], error["message"]
    if error["rank"] is not None:
        return f"rank {error['rank']} on {host}: {message}"
    return message if message.startswith(f"{host} ") else f"{host}: {message}"


def _restart(launch: Launch, run: SupervisedRun) -> tuple[Launch, Ending] | None:
    """Start the ranks again, on the hosts that answer; None where these are too few.

    Returns:
        The launch on those hosts, and how it ended.
    """
    began = time.monotonic()
    say_at, limit = 0.0, launch.timeouts.host_return
    before = launch.hosts
    lost: set[Host] = set()
    while True:
        hosts = hosts_of_restart(launch, lost)
        if hosts is None:
            waited = time.monotonic() - began
            if waited > limit:
                return None
            if waited >= say_at:
                say_at = waited + SAY_SECONDS
                names = ", ".join(sorted(host.name for host in lost)) or "hosts"
                times = f"{_minutes(waited)} of {_minutes(limit)}"
                run.events.write("phase", doing=f"{WAITS} for {names} ({times})")
            time.sleep(HOST_RETRY_SECONDS)
            lost.clear()  # they may be back
            continue
        if hosts != launch.hosts:
            launch = launch.on(hosts)
            _write(launch)
        try:
            return launch, run_ranks(launch, run, change_notice(before, hosts))
        except HostsRefused as error:
            lost |= {refusal.host for refusal in error.refused}


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"


def _write(launch: Launch) -> None:
    """Write a launch anew, for a supervisor that follows this one."""
    path = Path(launch.run_dir) / LAUNCH_FILE
    write_atomically(path, json.dumps(launch.to_dict()) + "\n")


def _killed(launch: Launch, rebooted: bool = False) -> dict[str, Any]:
    """The fields of an event `error`."""
    host = launch.hosts[0].name
    if rebooted:
        message, hint = "the head was started again", "its log says why: journalctl --boot=-1 -e"
        return {"message": message, "hint": hint, "host": host, "rank": None}
    hint = (
        "the kernel kills processes when memory is short: dmesg; one that is stopped (SIGSTOP) is "
        f"killed after {background.WATCHDOG_SECONDS:g} s; else ask who did"
    )
    return {"message": "the supervisor was killed", "hint": hint, "host": host, "rank": None}


def hosts_of_restart(launch: Launch, lost: Collection[Host]) -> tuple[RankHost, ...] | None:
    """The hosts that get ranks, the head first; None where too few are left.

    An idle host takes the place of a lost one, so that the ranks on all others keep their numbers.
    Where an earlier restart has left hosts out, idle hosts are added.

    Args:
        launch: with the hosts of the last start.
        lost: hosts that have not answered during this restart.
    """
    if launch.hosts[0] in lost:
        return None
    idle = [host for host in launch.idle if host not in lost]
    found = []
    for host in launch.hosts:
        if host not in lost:
            found.append(host)
        elif idle:
            found.append(idle.pop(0))
    found += idle[: launch.nodes - len(found)]
    if len(found) == launch.nodes or 0 < launch.min_nodes <= len(found):
        return tuple(found)
    return None


def change_notice(before: Sequence[Host], after: Sequence[Host]) -> str:
    """The notice that a restart uses other hosts; "" where it does not."""
    gone = ", ".join(host.name for host in before if host not in after)
    new = ", ".join(host.name for host in after if host not in before)
    if not new:
        return f"continuing without {gone}" if gone else ""
    return f"using {new} in place of {gone}" if gone else f"using {new} again"
