# Apache-2.0 (see LICENSE)
"""Copies the events of a run to the control node while they are written."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import time
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK, TELL
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import execute

# one that was killed is started again; its `end` event may have been written between two polls
GONE_SECONDS = 5.0
EVENTS = "events.jsonl"


class ActionModule(ActionBase):
    """See plugins/modules/follow.py."""

    _VALID_ARGS = frozenset(("run_dir", "file", "once", "destination", "poll_seconds"))
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        name = self._task.args.get("file", EVENTS)
        once = boolean(self._task.args.get("once", False))
        if name != EVENTS or once:
            return {**result, **self._follow_log(name, once)}
        run_dir = self._task.args["run_dir"]
        destination = Path(self._task.args["destination"])
        pause = float(self._task.args.get("poll_seconds", 0.5))
        gone_since = None
        while True:
            with destination.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # another command may follow the same run
                alive, text = self._poll(run_dir, EVENTS, file.seek(0, os.SEEK_END))
                whole = text[: text.rfind("\n") + 1]
                file.write(whole.encode())
            lines = whole.splitlines()
            if not (alive or lines):  # another command may have copied the end
                lines = destination.read_text(encoding="utf-8").splitlines()[-1:]
            ends = [event for event in map(_event, lines) if event["event"] == "end"]
            if ends:
                result.update(changed=False, end=ends[-1])
                return result
            now = time.monotonic()
            gone_since = None if alive else gone_since or now
            if gone_since and now - gone_since > GONE_SECONDS:
                raise AnsibleActionFail(self._last_words(run_dir))
            time.sleep(pause)

    def _follow_log(self, name, once):
        """Copy a log until the run has ended, or once."""
        pause = float(self._task.args.get("poll_seconds", 0.5))
        offset = 0
        while True:
            alive, text = self._poll(self._task.args["run_dir"], name, offset)
            data = text.encode(errors="surrogateescape")
            with Path(self._task.args["destination"]).open("ab") as file:
                file.write(data)
            offset += len(data)
            if once or not (alive or data):
                return {"changed": False}
            time.sleep(pause)

    def _poll(self, run_dir, name, offset):
        """Whether the supervisor is alive, and a file of the run from `offset` on."""
        folder = shlex.quote(run_dir)
        command = (
            f"{TELL}; cd {folder} && "
            f'if grep -qsF {folder} "/proc/$(cat supervisor.pid)/cmdline"; then tell alive; '
            "else tell gone; fi; "
            f"tail -c +{offset + 1} {shlex.quote(name)} 2>/dev/null"
        )
        answer = execute(self, command)
        # after the output of login scripts
        state, _, text = answer["stdout"].partition(MARK)[2].partition("\n")
        return state.strip() == "alive", text

    def _last_words(self, run_dir):
        folder = shlex.quote(run_dir)
        answer = execute(self, f"cd {folder} && tail -n 15 supervisor.log ranks.log 2>/dev/null")
        return f"the supervisor ended without an end event; its logs in {run_dir} end with:\n" + (
            answer["stdout"].strip() or "(nothing)"
        )


def _event(line):
    """One line of the file; the host may have written anything."""
    try:
        event = json.loads(line)
        if isinstance(event["event"], str):
            return event
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise AnsibleActionFail(f"events.jsonl has an invalid event: {line[:200]!a}")
