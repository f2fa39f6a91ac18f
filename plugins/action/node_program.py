# Apache-2.0 (see LICENSE)
"""Runs a program of the node package with one command on the host.

This is not a module, because packing, sending and unpacking a module takes as long as the start of
the program.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.module_utils.killed import why_killed
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import (
    environment_words,
    execute,
)

# This program reads the command from stdin, so the command may have any length and any quotes. It
# returns the command's stderr apart from messages of ssh and sudo. The mark is assembled when it is
# printed, as in TELL.
RUN = "; ".join((
    "import json, os, subprocess, sys",
    # container images often set this variable; callers that need it pass -B
    'os.environ.pop("PYTHONDONTWRITEBYTECODE", None)',
    "command, stdin = json.load(sys.stdin)",
    # the number of processes that the kernel has killed because memory was short
    'counters = "/proc/vmstat"',
    "lines = lambda: open(counters) if os.path.exists(counters) else ()",
    'kills = lambda: [line for line in lines() if line.startswith("oom_kill ")]',
    "before = kills()",
    'done = subprocess.run(command, input=stdin.encode(), cwd="/", capture_output=True)',
    'texts = [text.decode(errors="replace") for text in (done.stdout, done.stderr)]',
    'answer = [done.returncode, *texts, kills() != before]',
    'print("ftcluster-%s" % "answer:", json.dumps(answer))',
))  # fmt: skip
SECRET = "*" * 8
# message of a Python whose package lacks the requested module
NO_PROGRAM = re.compile(
    r"No module named '?ftcluster_train\b|'ftcluster_train\.\w+' is a package and"
)
OTHER_VERSION = (
    "the version of ftcluster in {stack} on this host lacks the program {program}: run ftcluster "
    "setup, or install the version that set up the hosts on the control node"
)


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/node_program.py."""

    _VALID_ARGS = frozenset(("stack", "program", "arguments", "stdin", "compiles"))
    _requires_connection = True
    _supports_check_mode = False

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task, secret = self._task.args, self._task.args.get("stdin") or ""
        python, program = f"{task['stack']}/bin/python", task["program"]
        options = [] if boolean(task.get("compiles", False)) else ["-B"]
        argv = [*options, "-m", f"ftcluster_train.{program}", *task.get("arguments", ())]
        outcome = execute(
            self,
            f"{environment_words(self)} {shlex.quote(python)} -I -B -c {shlex.quote(RUN)}",
            json.dumps([[python, *map(str, argv)], secret and f"{secret}\n"]).encode(),
        )
        mark, answer = outcome["stdout"].partition(MARK)[1:]
        if not mark:  # the stack does not exist, or the host has ended the shell
            code = outcome["rc"] or 1
            why = (outcome["stderr"] or outcome["stdout"]).strip()
            why = why or f"{program} ended with exit code {code}"
            return {**result, "failed": True, "msg": why, "rc": code, "stdout": "", "stderr": why}
        try:
            code, out, err, short_of_memory = json.loads(answer.partition("\n")[0])
            killed = why_killed(code, short_of_memory)
            texts = [text.rstrip("\r\n").replace(secret or "\0", SECRET) for text in (out, err)]
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise AnsibleActionFail(f"the host's response is invalid: {answer[:200]!a}") from None
        result.update(rc=code, stdout=texts[0], stderr=texts[1], changed=True)
        if code:
            lacks = NO_PROGRAM.search(texts[1])
            message = OTHER_VERSION if lacks else f"{program} ended with exit code {code}"
            message = f"{program} {killed}" if killed else message
            result.update(failed=True, msg=message.format(program=program, stack=task["stack"]))
            if lacks:  # the caller prints this text
                result.update(stderr=result["msg"])
            elif killed:
                result.update(stderr=f"{texts[1]}\n{message}".lstrip())
        return result
