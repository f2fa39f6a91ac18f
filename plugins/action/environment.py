# Apache-2.0 (see LICENSE)
"""Downloads wheels once, sends them to the host and has them installed; see the module."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import push_files
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Target,
    Wheelhouse,
    WheelhouseError,
    get_wheels,
    sha256_of,
)

MODULE = "ftcluster.cluster.environment"


class ActionModule(ActionBase):
    """Asks the host, and does nothing where it has what it should have."""

    _VALID_ARGS = frozenset(("path", "requirements", "wheels", "layer", "python", "cache"))
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        """Bring one environment, or one layer of it, up to date."""
        super().run(tmp, task_vars)
        arguments = self._task.args
        digest = _digest(arguments)
        state = self._execute_module(MODULE, arguments, task_vars=task_vars)
        if state.get("failed"):
            return state
        if state["digest"] == digest:
            return {"changed": False}
        if self._task.check_mode:
            return {"changed": True}
        house = self._wheels(arguments, state)
        # its own: what is left of a control node that was killed may still be at work
        staging = f"{arguments['path'].rstrip('/')}.staging-{secrets.token_hex(4)}"
        push_files(self, [(path, path.name) for path in house.files], staging)
        return self._execute_module(
            MODULE,
            {**arguments, "digest": digest, "sha256": house.sha256, "staging": staging},
            task_vars=task_vars,
        )

    def _wheels(self, arguments, state):
        if arguments.get("layer"):
            paths = [Path(path) for path in arguments["wheels"]]
            return Wheelhouse(paths[0].parent, {path.name: sha256_of(path) for path in paths})
        if not state["glibc"]:
            raise AnsibleActionFail("the host's C library is not glibc, which the wheels need")
        target = Target(state["python_version"], state["glibc"], state["machine"])
        try:
            return get_wheels(Path(arguments["requirements"]), target, _cache(arguments))
        except WheelhouseError as error:
            raise AnsibleActionFail(str(error)) from error


def _digest(arguments):
    """What the marker of a finished part says."""
    if arguments.get("layer"):
        return "-".join(sha256_of(Path(path)) for path in arguments["wheels"])
    return hashlib.sha256(Path(arguments["requirements"]).read_bytes()).hexdigest()


def _cache(arguments):
    if arguments.get("cache"):
        return Path(arguments["cache"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ftcluster" / "wheels"
