# Apache-2.0 (see LICENSE)
"""Adds the requester and this control node's running setups to the module's arguments."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.module_utils.boot import BOOT_ID
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import sha256_of

MODULE = "ftcluster.cluster.setup_lock"


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/setup_lock.py."""

    _VALID_ARGS = frozenset(
        ("prefix", "state", "create", "take_over", "lease", "stacks", "node_package", "members")
    )
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        # id of the process that runs a setup's playbooks: our command, or else ansible-playbook
        play = int(os.environ.get("FTCLUSTER_PID") or os.getppid())
        control = control_id()
        wheel = self._task.args.get("node_package")
        asks = {
            "digest": sha256_of(Path(wheel)) if wheel and Path(wheel).is_file() else "",
            "owner": f"{control} {play} {started(play)}",
            "who": f"{user()} on {socket.gethostname()} (process {play})",
            "alive": [f"{control} {pid} {started(pid)}" for pid in plays()],
        }
        arguments = {**self._task.args, "from_action": asks}
        result: dict[str, Any] = self._execute_module(MODULE, arguments, task_vars=task_vars)
        return result


def control_id() -> str:
    """Return an id that identifies this control node's boot and container."""
    boot, processes = Path(BOOT_ID), Path("/proc/self/ns/pid")
    text = boot.read_text(encoding="ascii") if boot.exists() else socket.gethostname()
    text += str(processes.readlink()) if processes.is_symlink() else ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def started(pid: int) -> str:
    """Return a process's start time in ticks since boot, or "0" if the process has ended.

    Together with the id, it identifies the process, because ids are reused.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def plays() -> list[int]:
    """Return the ids of processes on this machine that may be running a setup."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if b"ansible-playbook" in command or b"ftcluster" in command:
                pids.append(int(folder.name))
        except OSError:
            continue  # the process has ended
    return pids


def user() -> str:
    """Return the current user's name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
