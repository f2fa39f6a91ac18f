# Apache-2.0 (see LICENSE)
"""Copies the events of a run to the control node while they are written."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK, TELL
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import execute

# one that was killed is started again; its `end` event may have been written between two polls
GONE_SECONDS = 5.0
EVENTS = "events.jsonl"
PIECE_BYTES = 1 << 20  # of the file, in one answer
TAIL_BYTES = 64 << 10  # of the copy, in which the end is; an event is shorter
SPARE_BYTES = 256 << 20  # that stay free here


class ActionModule(ActionBase):
    """See plugins/modules/follow.py."""

    _VALID_ARGS = frozenset(("run_dir", "file", "once", "destination", "poll_seconds"))
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        name = self._task.args.get("file", EVENTS)
        once = boolean(self._task.args.get("once", False))
        if name != EVENTS or once:
            return {**result, **self._follow_log(name, once)}
        run_dir = self._task.args["run_dir"]
        destination = Path(self._task.args["destination"])
        pause = float(self._task.args.get("poll_seconds", 0.5))
        gone_since = None
        while True:
            _check_room(destination.parent)
            with destination.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another command may follow the same run
                alive, data = self._poll(run_dir, EVENTS, file.seek(0, os.SEEK_END))
                full = len(data) == PIECE_BYTES
                whole = data[: data.rfind(b"\n") + 1] or (data if full else b"")
                file.write(whole)
            if not (alive or whole):  # another command may have copied the end
                whole = _tail(destination)
            ends = [
                event for event in map(_event, whole.split(b"\n")) if event.get("event") == "end"
            ]
            if ends:
                result.update(changed=False, end=ends[-1])
                return result
            if full:
                continue
            now = time.monotonic()
            gone_since = None if alive else gone_since or now
            if gone_since and now - gone_since > GONE_SECONDS:
                raise AnsibleActionFail(self._last_words(run_dir))
            time.sleep(pause)

    def _follow_log(self, name: str, once: bool) -> dict[str, Any]:
        """Copy a log until the run has ended, or once."""
        pause = float(self._task.args.get("poll_seconds", 0.5))
        destination = Path(self._task.args["destination"])
        offset = 0
        while True:
            _check_room(destination.parent)
            alive, data = self._poll(self._task.args["run_dir"], name, offset)
            with destination.open("ab") as file:
                file.write(data)
            offset += len(data)
            if len(data) == PIECE_BYTES:
                continue
            if once or not (alive or data):
                return {"changed": False}
            time.sleep(pause)

    def _poll(self, run_dir: str, name: str, offset: int) -> tuple[bool, bytes]:
        """Whether the supervisor is alive, and a piece of a file of the run from `offset` on."""
        folder = shlex.quote(run_dir)
        command = (
            f"{TELL}; cd {folder} && "
            f'if grep -qsF {folder} "/proc/$(cat supervisor.pid)/cmdline"; then tell alive; '
            "else tell gone; fi; "
            f"tail -c +{offset + 1} {shlex.quote(name)} 2>/dev/null | head -c {PIECE_BYTES}"
        )
        answer = execute(self, command)
        # after the output of login scripts
        state, text = answer["stdout"].partition(MARK)[2].partition("\n")[::2]
        data = text.encode(errors="surrogateescape")
        if len(data) > PIECE_BYTES:
            raise AnsibleActionFail(f"the host sends more of {name} than it was asked for")
        return state.strip() == "alive", data

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
