# Apache-2.0 (see LICENSE)
"""Adds to the module of the same name who asks and which setups run on this control node."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shlex
import socket
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.module_utils.alone import LOCK
from ansible_collections.ftcluster.cluster.plugins.module_utils.boot import BOOT_ID
from ansible_collections.ftcluster.cluster.plugins.modules.setup_lock import (
    COMPLETE,
    NAME,
    new_lock,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import above, look
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import sha256_of

MODULE = "ftcluster.cluster.setup_lock"
WAIT_SECONDS = 20


class ActionModule(ActionBase):
    """See plugins/modules/setup_lock.py."""

    _VALID_ARGS = frozenset(
        ("prefix", "state", "create", "take_over", "lease", "stacks", "node_package")
    )
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        # the command that runs several playbooks for one setup, else ansible-playbook itself
        play = int(os.environ.get("FTCLUSTER_PID") or os.getppid())
        control = control_id()
        wheel = self._task.args.get("node_package")
        arguments = {
            **{key: value for key, value in self._task.args.items() if key != "node_package"},
            "digest": sha256_of(Path(wheel)) if wheel and Path(wheel).is_file() else "",
            "owner": f"{control} {play} {started(play)}",
            "who": f"{user()} on {socket.gethostname()} (process {play})",
            "alive": [f"{control} {pid} {started(pid)}" for pid in plays()],
        }
        if self._done_in_shell(arguments):
            return {"changed": False}
        return self._execute_module(MODULE, arguments, task_vars=task_vars)

    def _done_in_shell(self, arguments):
        """Whether a shell command did it, in a third of the module's time.

        If another setup has the lock, another user may exchange the folder, or a stack is going to
        change, the command does nothing and the module decides.
        """
        if self._task.check_mode:
            return False
        folder, owner = arguments["prefix"], json.dumps(arguments["owner"])
        if arguments.get("state") == "released":
            script = f"""case "$(cat {NAME})" in *'"owner": {owner}'*) rm -f {NAME};; esac"""
            after = f"[ -e {NAME} ] || tell done yes"
        else:
            script = take_script(arguments)
            after = f"""case "$(cat {NAME})" in *'"owner": {owner}'*) tell done yes;; esac"""
        guarded = GUARDED.format(paths=" ".join(map(shlex.quote, above(f"{folder}/{NAME}"))))
        # the mode of the file that is locked, because whoever can open it can lock it
        locked = f"umask 077; flock -w {WAIT_SECONDS} {LOCK} sh -c {shlex.quote(script)}"
        command = f"cd {shlex.quote(folder)} && ( {guarded}\n{locked} ) 2> /dev/null"
        found = look(self, [folder], more=f"{command} && {{ {after}; }}; :")
        return found is not None and found.said.get("done") == ["yes"]


# only root and this user may write on the way to the folder; the module accepts more
GUARDED = """me=$(id -un)
for path in {paths}; do
  case "$(LC_ALL=C stat -c '%F %U %a' "$path")" in
    "directory root "*[0145][0145] | "directory $me "*[0145][0145]) ;;
    *) exit 1 ;;
  esac
done"""
UNCHANGED = '[ "$(cut -d " " -f 1 {complete})" = {digest} ] || exit 1'
WRITE = "[ -e {name} ] || {{ umask 022; set -C; printf '%s\\n' {lock} > {name}; }}"


def take_script(arguments):
    """Shell commands that take the lock in the current folder if it is free and safe to take."""
    lock = json.dumps(new_lock(arguments["owner"], arguments["who"], "@since@", "@boot@"))
    lock = shlex.quote(lock).replace('"@since@"', "'$(date +%s)'")
    lock = lock.replace("@boot@", f"'$(cat {BOOT_ID})'")
    digest = shlex.quote(arguments["digest"] or "none")
    complete = [shlex.quote(f"{stack}/{COMPLETE}") for stack in arguments.get("stacks") or []]
    return "\n".join(
        [
            *(UNCHANGED.format(complete=path, digest=digest) for path in complete),
            WRITE.format(name=NAME, lock=lock),
        ]
    )


def control_id():
    """The id of this control node's boot and container."""
    boot, processes = Path(BOOT_ID), Path("/proc/self/ns/pid")
    text = boot.read_text(encoding="ascii") if boot.exists() else socket.gethostname()
    text += str(processes.readlink()) if processes.is_symlink() else ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def started(pid):
    """The start of a process in ticks since the boot, because process ids are reused."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def plays():
    """Process ids of this machine that may be running a setup."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if b"ansible-playbook" in command or b"ftcluster" in command:
                found.append(int(folder.name))
        except OSError:
            continue  # it ended meanwhile
    return found


def user():
    """The current user's name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
