# Apache-2.0 (see LICENSE)
"""Detects runs that use a stack; such runs hold a shared lock on the stack's folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.module_utils.alone import lock_holders
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    read_text,
    user_name,
)

HOST_NAME = re.compile(r"[A-Za-z0-9][\w.:-]{0,252}")


class InUse(ValueError):
    """A run uses the stack; the message names the run and says what to do."""


@contextlib.contextmanager
def without_runs(stack: str | Path, processes: Path = Path("/proc")) -> Iterator[None]:
    """Prevent runs from starting on a stack during this context, if the stack exists.

    Raises:
        InUse: a run uses the stack.
    """
    try:
        descriptor = os.open(stack, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            runs = runs_on(stack, processes)
            holders = () if runs else lock_holders(descriptor)
            raise InUse(words(Path(stack), runs, holders)) from None
        except OSError:
            pass  # the file system has no locks
        yield
    finally:
        os.close(descriptor)


def words(stack: Path, runs: Sequence[str], holders: Sequence[str] = ()) -> str:
    """Return the error message; if no run is known, name the processes that hold the lock."""
    if holders:
        return (
            f"{', '.join(holders)} {'holds' if len(holders) == 1 else 'hold'} a lock on the stack "
            f"{stack.name} here, so the stack cannot be changed or removed; wait for "
            f"{'this process' if len(holders) == 1 else 'these processes'} to end, or end "
            f"{'it' if len(holders) == 1 else 'them'}"
        )
    who = f"the run{'s' * (len(runs) > 1)} {', '.join(runs)}" if runs else "a run"
    folder = stack.parents[1] / "runs"
    python = f"{as_owner(folder)}{stack}/bin/python -I"
    stop = f"{python} -m ftcluster_train.host.supervisor stop {folder}/"
    until, ended = ("the runs end", "each of them") if len(runs) > 1 else ("the run ends", "it")
    return (
        f"{who} use{'s' * (len(runs) < 2)} the stack {stack.name} here, so the stack cannot be "
        f"changed or removed; wait until {until}, or end {ended} on the head: "
        f"{stop}{runs[0] if len(runs) == 1 else 'RUN'}"
    )


def as_owner(folder: Path) -> str:
    """Return the sudo prefix that runs a command as a folder's owner; "" for the current user.

    Root must not run the command itself, because it does not trust the owner.
    """
    try:
        uid = folder.stat().st_uid
    except OSError:
        return ""
    return "" if uid == os.geteuid() else f"sudo -u {user_name(uid)} "


def runs_on(stack: str | Path, processes: Path = Path("/proc")) -> list[str]:
    """Return the ids of runs with a visible process that has the stack's folder open."""
    wanted = Path(stack).stat()
    found = set()
    for process in processes.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if any(same(path, wanted) for path in (process / "fd").iterdir()):
                run = run_of(process)
                found |= {run} if run else set()
    return sorted(found)


def runs_beyond(prefix: Path, members: Sequence[str], processes: Path = Path("/proc")) -> list[str]:
    """Return an error message for each run of this head that uses a host outside the cluster.

    Args:
        prefix: folder of the cluster.
        members: addresses of the cluster's hosts.
    """
    stacks = (prefix / "stacks").glob("[!.]*/")
    active = {run for stack in stacks for run in runs_on(stack, processes)}
    messages = []
    for run in sorted(active):
        others = others_of(prefix / "runs" / run / "launch.json")
        names = [name for name, address in others if address not in members]
        if names:
            messages.append(
                f"run {run} uses {', '.join(names)}, missing from the inventory: keep all hosts of "
                f"the run in the inventory until it ends (ftcluster stop {run} ends it now); to "
                f"keep new runs off a host: ftcluster hosts drain {' '.join(names)}"
            )
    return messages


def others_of(launch: Path) -> list[tuple[str, str]]:
    """Return names and addresses of a run's hosts except the head.

    The ranks' account writes launch.json, so the file may have any content.
    """
    try:
        hosts = json.loads(read_text(launch) or "{}")["hosts"][1:]
        others = [(str(host["name"]), str(host["address"])) for host in hosts]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []
    return [(name, address) for name, address in others if HOST_NAME.fullmatch(name)]


def same(path: Path, wanted: os.stat_result) -> bool:
    """Return True if `path` is the file with the status `wanted`."""
    try:
        return os.path.samestat(path.stat(), wanted)
    except OSError:
        return False


def run_of(process: Path) -> str:
    """Return the id of the run that a process belongs to, or ""."""
    for variable in (process / "environ").read_bytes().split(b"\0"):
        name, value = variable.partition(b"=")[::2]
        if name == b"FTCLUSTER_RUN":
            return run_id(value)
    # processes that prepare or supervise a run have the run's folder as an argument
    found = re.search(rb"/runs/([^/\0]+)", (process / "cmdline").read_bytes())
    return run_id(found.group(1)) if found else ""


def run_id(value: bytes) -> str:
    """Return a run id if it is safe to use in a command, or else "".

    The id comes from another user's process.
    """
    match = re.fullmatch(rb"[\w.-]{1,200}", value)
    return match.group().decode("ascii") if match else ""
