"""Restarts of a run's ranks after failures that the program itself has not caused.

Standard library only.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.launch import LAUNCH_FILE, Host, Launch, RankHost
from ftcluster_common.protocol.run_state import WAITS
from ftcluster_train.io import processes
from ftcluster_train.io.events import place_and_message, seconds_since_first
from ftcluster_train.io.fsync import write_atomically
from ftcluster_train.supervisor import background
from ftcluster_train.supervisor.link_check import LinkCheck
from ftcluster_train.supervisor.monitors import Ending
from ftcluster_train.supervisor.rank_launch import (
    LINK_CAUSE,
    MEMORY_HINT,
    HostsRefused,
    SupervisedRun,
    refusal_fields,
    run_ranks,
)
from ftcluster_train.supervisor.ssh_check import HostFailure

HOST_RETRY_SECONDS = 5.0
SAY_SECONDS = 15.0  # between two events that name the awaited hosts


def run_with_restarts(
    launch: Launch, run: SupervisedRun, again: bool, rebooted: bool = False
) -> Ending:
    """Run the ranks; after failures that the program has not caused, restart them if allowed.

    A training resumes by itself from its newest checkpoint or snapshot. A spare host replaces a
    lost host. Without a spare, the run continues without the lost host if the launch allows that,
    or waits for it.

    Args:
        again: True if a previous supervisor of the run was killed.
        rebooted: True if a reboot of the head ended that supervisor.

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
        try:
            launch, ending = _restart(launch, run, ending)
        except HostsRefused as error:
            # the event `restart` has already reported the failure before this one
            errors = list(map(refusal_fields, error.refused)) or ending.errors
            ending = replace(ending, errors=errors, restartable=False)
    return replace(ending, seconds=round(time.monotonic() - began, 2))


def _restart(launch: Launch, run: SupervisedRun, failure: Ending) -> tuple[Launch, Ending]:
    """Restart the ranks on the hosts that can be used.

    Args:
        failure: ending of the previous start of the ranks.

    Returns:
        The launch on those hosts, and how it ended.

    Raises:
        HostsRefused: too few hosts can be used, even after a wait for hosts that may return.
    """
    began = time.monotonic()
    say_at, limit = 0.0, launch.timeouts.host_return
    before = launch.hosts
    link_was_cut = any(error.get("cause") == LINK_CAUSE for error in failure.errors)
    refused: dict[Host, HostFailure] = {}
    while True:
        hosts = hosts_of_restart(launch, refused)
        if hosts is None:
            waited = time.monotonic() - began
            if waited > limit or any(refusal.lasting for refusal in refused.values()):
                raise HostsRefused(list(refused.values()))
            if waited >= say_at:
                say_at = waited + SAY_SECONDS
                names = ", ".join(sorted(map(_with_cause, refused.values()))) or "hosts"
                times = f"{_minutes(waited)} of {_minutes(limit)}"
                run.events.write("phase", doing=f"{WAITS} for {names} ({times})")
            time.sleep(HOST_RETRY_SECONDS)
            refused.clear()  # lost hosts may be back
            continue
        if hosts != launch.hosts:
            launch = launch.on(hosts)
            _write(launch)
        try:
            if link_was_cut:
                _refuse_cut_links(launch)
            return launch, run_ranks(launch, run, change_notice(before, hosts, refused))
        except HostsRefused as error:
            refused |= {refusal.host: refusal for refusal in error.refused}


def _refuse_cut_links(launch: Launch) -> None:
    """Check the links between the hosts of a launch.

    Raises:
        HostsRefused: some hosts do not reach each other.
    """
    if refused := LinkCheck(launch).result().refused():
        raise HostsRefused(refused)


def _with_cause(refusal: HostFailure) -> str:
    return f"{refusal.host.name}: {refusal.cause.name if refusal.cause else refusal.reason}"


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"


def _write(launch: Launch) -> None:
    """Rewrite the launch file, for a supervisor that follows this one."""
    path = Path(launch.run_dir) / LAUNCH_FILE
    write_atomically(path, json.dumps(launch.to_dict()) + "\n")


def _killed(launch: Launch, rebooted: bool = False) -> dict[str, Any]:
    """Return the fields of an event `error` about a supervisor that was killed."""
    host = launch.hosts[0].name
    if rebooted:
        message, hint = "the head was started again", "its log says why: journalctl --boot=-1 -e"
        return {"message": message, "hint": hint, "host": host, "rank": None}
    hint = (
        f"{MEMORY_HINT}; a stopped supervisor (SIGSTOP) is killed "
        f"after {background.WATCHDOG_SECONDS:g} s; otherwise find out who killed it"
    )
    return {"message": "the supervisor was killed", "hint": hint, "host": host, "rank": None}


def hosts_of_restart(launch: Launch, lost: Collection[Host]) -> tuple[RankHost, ...] | None:
    """Return the hosts that get ranks, the head first; None if too few are left.

    An idle host takes the place of a lost host, so that the ranks on all other hosts keep their
    numbers. If an earlier restart has dropped hosts, idle hosts are added.

    Args:
        launch: launch with the hosts of the last start.
        lost: hosts that cannot be used, as seen during this restart.
    """
    if launch.hosts[0] in lost:
        return None
    idle = [host for host in launch.idle if host not in lost]
    hosts = []
    for host in launch.hosts:
        if host not in lost:
            hosts.append(host)
        elif idle:
            hosts.append(idle.pop(0))
    hosts += idle[: launch.nodes - len(hosts)]
    if len(hosts) == launch.nodes or 0 < launch.min_nodes <= len(hosts):
        return tuple(hosts)
    return None


def change_notice(
    before: Sequence[Host], after: Sequence[Host], refused: Mapping[Host, HostFailure]
) -> str:
    """Return the notice that a restart uses other hosts; "" if it uses the same hosts.

    Args:
        refused: failures of the hosts that are not used, as far as known.
    """
    gone = [host for host in before if host not in after]
    names = ", ".join(host.name for host in gone)
    new = ", ".join(host.name for host in after if host not in before)
    why = "; ".join(refused[host].reason for host in gone if host in refused)
    because = f": {why}" if why else ""
    if not new:
        return f"continuing without {names}{because}" if names else ""
    return f"using {new} in place of {names}{because}" if names else f"using {new} again"
