# Apache-2.0 (see LICENSE)
"""Tells the module of the same name who asks, and which other setups live on this control node."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shlex
import socket
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.modules.setup_lock import NAME
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import look
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import sha256_of

MODULE = "ftcluster.cluster.setup_lock"


class ActionModule(ActionBase):
    """Adds owner, who and alive to the arguments."""

    _VALID_ARGS = frozenset(
        ("prefix", "state", "create", "take_over", "lease", "stacks", "node_package")
    )
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        """Take or release the lock of one host."""
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
        if arguments.get("state") == "released" and self._is_released(arguments):
            return {"changed": False}
        return self._execute_module(MODULE, arguments, task_vars=task_vars)

    def _is_released(self, arguments):
        """Release it in the shell, a third of the time of the module; whether that succeeded."""
        folder, owner = arguments["prefix"], json.dumps(arguments["owner"])
        lock = shlex.quote(f"{folder}/{NAME}")
        release = (
            f"cd {shlex.quote(folder)} && flock . sh -c "
            + shlex.quote(f"""case "$(cat {lock})" in *'"owner": {owner}'*) rm -f {lock};; esac""")
            + f"; [ -e {lock} ] || tell released yes"
        )
        found = None if self._task.check_mode else look(self, [folder], more=release)
        return found is not None and found.said.get("released") == ["yes"]


def control_id():
    """What tells this boot of this control node from others, also from other containers."""
    boot, processes = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    text = boot.read_text(encoding="ascii") if boot.exists() else socket.gethostname()
    text += str(processes.readlink()) if processes.is_symlink() else ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def started(pid):
    """When a process began, in ticks since the boot; a number that is used again has another."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def plays():
    """Process ids of this machine that may be at a setup."""
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
    """The name of who runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
