# Apache-2.0 (see LICENSE)
"""Copies a folder to a host, once; see plugins/modules/push.py."""

from __future__ import annotations

import secrets
import shlex
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.module_utils.tree import tree_sha256
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import execute, push_files

MODULE = "ftcluster.cluster.push"


class ActionModule(ActionBase):
    """See plugins/modules/push.py."""

    _VALID_ARGS = frozenset(("source", "path", "files"))
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        source, path = Path(self._task.args["source"]), self._task.args["path"].rstrip("/")
        if execute(self, f"test -d {shlex.quote(path)}")["rc"] == 0:
            return {"changed": False}
        if self._task.check_mode:
            return {"changed": True}
        names = self._task.args.get("files")
        if names is None:
            found = sorted(path for path in source.rglob("*") if path.is_file())
            names = [str(path.relative_to(source)) for path in found]
        # its own: another control node may be copying the same folder
        new = f"{path}.new-{secrets.token_hex(4)}"
        whole = False
        try:
            sent = push_files(self, [(source / name, name) for name in names], new)
            arguments = {"source": str(source), "path": path, "new": new}
            done = self._execute_module(
                MODULE, {**arguments, "sha256": tree_sha256(sent)}, task_vars=task_vars
            )
            whole = not done.get("failed")
            return {**done, "files": len(names)}
        finally:
            if not whole:
                execute(self, f"rm -rf {shlex.quote(new)}")
