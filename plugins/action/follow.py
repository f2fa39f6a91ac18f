# Apache-2.0 (see LICENSE)
"""Copies the events or a log of a run to the control node while they are written.

A command on the host waits until there is more to read, because each command is a session of SSH
and one of sudo.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK, TELL
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import execute

# one that was killed is started again; its `end` event may have been written between two polls
GONE_SECONDS = 5.0
WAIT_SECONDS = 20  # of a command on the host; it goes on so long after its connection was lost
BUSY_SECONDS = 2.0  # the longest pause between two commands, while each brings something
EVENTS = "events.jsonl"
PIECE_BYTES = 1 << 20  # of the file, in one answer
TAIL_BYTES = 64 << 10  # of the copy, in which the end is; an event is shorter
SPARE_BYTES = 256 << 20  # that stay free here
FILE = r"[0-9.-]{1,60}"  # inode and time in seconds, see stat(1)
LOST = b"[lines are missing here: the log was rotated twice before they were copied]\n"


@dataclass(frozen=True)
class _Piece:
    """What a host has of a file from some byte on.

    Attributes:
        alive: whether the run's supervisor is.
        file: its inode, and when it was made because inodes are used again; "0" if there is none.
    """

    alive: bool
    file: str
    data: bytes

    @property
    def full(self) -> bool:
        """Whether there may be more at once."""
        return len(self.data) == PIECE_BYTES


class ActionModule(ActionBase):
    """See plugins/modules/follow.py."""

    _VALID_ARGS = frozenset(("run_dir", "file", "once", "destination", "poll_seconds"))
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        name = self._task.args.get("file", EVENTS)
        once = boolean(self._task.args.get("once", False))
        run_dir, destination = self._task.args["run_dir"], Path(self._task.args["destination"])
        self._shortest = self._pause = float(self._task.args.get("poll_seconds", 0.5))
        if name == EVENTS and not once:
            end = self._follow_events(run_dir, destination)
            return {**result, "changed": False, "end": end}
        self._follow_log(run_dir, name, destination, once)
        return {**result, "changed": False}

    def _follow_events(self, run_dir: str, destination: Path) -> dict[str, Any]:
        """Copy events until the run's end, which is returned."""
        gone_since = None
        while True:
            offset = destination.stat().st_size if destination.exists() else 0
            found = self._poll(run_dir, EVENTS, offset, WAIT_SECONDS)
            whole = found.data[: found.data.rfind(b"\n") + 1] or (found.data if found.full else b"")
            _check_room(destination.parent)
            with destination.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another command may follow the same run
                if file.seek(0, os.SEEK_END) == offset:
                    file.write(whole)
            if not (found.alive or whole):  # another command may have copied the end
                whole = _tail(destination)
            ends = [
                event for event in map(_event, whole.split(b"\n")) if event.get("event") == "end"
            ]
            if ends:
                return ends[-1]
            now = time.monotonic()
            gone_since = None if found.alive else gone_since or now
            if gone_since and now - gone_since > GONE_SECONDS:
                raise AnsibleActionFail(self._last_words(run_dir))
            self._sleep(found)

    def _follow_log(self, run_dir: str, name: str, destination: Path, once: bool) -> None:
        """Copy a log until the run has ended, or once, whatever its rotation does meanwhile."""
        offset, known = 0, "0"
        while True:
            _check_room(destination.parent)
            found = self._poll(run_dir, name, offset, 0 if once else WAIT_SECONDS, known)
            if known not in ("0", found.file) and found.file != "0":
                self._finish_rotated(run_dir, name, destination, offset, known)
                offset, known = 0, "0"
                continue
            with destination.open("ab") as file:
                file.write(found.data)
            offset += len(found.data)
            known = known if found.file == "0" else found.file
            if not found.full and (once or not (found.alive or found.data)):
                return
            self._sleep(found)

    def _finish_rotated(
        self, run_dir: str, name: str, destination: Path, offset: int, known: str
    ) -> None:
        """Copy what the log had that has been renamed meanwhile."""
        with destination.open("ab") as file:
            while True:
                rest = self._poll(run_dir, f"{name}.1", offset, 0)
                if rest.file != known:
                    file.write(LOST)
                    return
                file.write(rest.data)
                offset += len(rest.data)
                if not rest.full:
                    return

    def _poll(
        self, run_dir: str, name: str, offset: int, wait_seconds: int, known: str = "0"
    ) -> _Piece:
        """A piece of a file of the run from `offset` on.

        The host waits up to `wait_seconds` for it, while the supervisor is alive and the file is
        the `known` one.
        """
        folder, path = shlex.quote(run_dir), shlex.quote(name)
        known = known if re.fullmatch(FILE, known) else "0"
        command = (
            f"{TELL}; cd {folder} && waits={2 * wait_seconds} && while :; do "
            f'if grep -qsF {folder} "/proc/$(cat supervisor.pid)/cmdline"; then state=alive; '
            "else state=gone; fi; "
            # what is open stays the file that was looked at when it is renamed
            f"command exec 3< {path} && set -- $(stat -Lc '%i-%.W %s' /proc/self/fd/3) "
            "|| set -- 0 0; "
            f'if [ "$2" -gt {offset} ] || [ $state = gone ] || [ $waits -le 0 ]; then break; fi; '
            f'if [ {known} != 0 ] && [ "$1" != 0 ] && [ "$1" != {known} ]; then break; fi; '
            "waits=$((waits - 1)); sleep 0.5; done; "
            f'tell "$state $1"; [ "$1" = 0 ] || tail -c +{offset + 1} <&3 | head -c {PIECE_BYTES}'
        )
        answer = execute(self, f"{{ {command}; }} 2>/dev/null")
        # after the output of login scripts
        words, _, text = answer["stdout"].partition(MARK)[2].partition("\n")
        state, _, found = words.strip().partition(" ")
        data = text.encode(errors="surrogateescape")
        if len(data) > PIECE_BYTES:
            raise AnsibleActionFail(f"the host sends more of {name} than it was asked for")
        return _Piece(state == "alive", found or "0", data)

    def _sleep(self, found: _Piece) -> None:
        """Pause for longer the longer each command brings something."""
        if found.full:
            return
        time.sleep(self._pause)
        grown = min(BUSY_SECONDS, 1.2 * self._pause)
        self._pause = max(self._shortest, grown) if found.data else self._shortest

    def _last_words(self, run_dir: str) -> str:
        folder = shlex.quote(run_dir)
        answer = execute(self, f"cd {folder} && tail -n 15 supervisor.log ranks.log 2>/dev/null")
        return f"the supervisor ended without an end event; its logs in {run_dir} end with:\n" + (
            answer["stdout"].strip() or "(nothing)"
        )


def _check_room(folder: Path) -> None:
    if shutil.disk_usage(folder).free < SPARE_BYTES:
        raise AnsibleActionFail(
            f"{folder} on the control node has less than {SPARE_BYTES >> 20} MiB free, so nothing "
            "is copied there; the run continues"
        )


def _event(line: bytes) -> dict[str, Any]:
    """One line of the file; {} where it is damaged: the host may have written anything."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read()
