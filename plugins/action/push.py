# Apache-2.0 (see LICENSE)
"""Copies a folder to a host, once; see plugins/modules/push.py."""

from __future__ import annotations

import shlex
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import execute, push_files


class ActionModule(ActionBase):
    """Asks whether the folder is there, and streams a tar of it where it is not."""

    _VALID_ARGS = frozenset(("source", "path", "files"))
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        """Copy the folder."""
        super().run(tmp, task_vars)
        source, path = Path(self._task.args["source"]), self._task.args["path"].rstrip("/")
        there = shlex.quote(path)
        if execute(self, f"test -d {there}")["rc"] == 0:
            return {"changed": False}
        if self._task.check_mode:
            return {"changed": True}
        names = self._task.args.get("files")
        if names is None:
            found = sorted(path for path in source.rglob("*") if path.is_file())
            names = [str(path.relative_to(source)) for path in found]
        files = [(source / name, name) for name in names]
        new = shlex.quote(f"{path}.new")
        push_files(self, files, f"{path}.new")
        command = f"sync {new} && chmod 0700 {new} && mv -T {new} {there}"
        done = execute(self, command)
        if done["rc"] != 0:
            raise AnsibleActionFail(f"{path} cannot be made: {done['stderr'].strip()}")
        return {"changed": True, "files": len(files)}
