# Apache-2.0 (see LICENSE)
"""Copies a folder to a host that does not have it yet; see plugins/modules/push.py."""

from __future__ import annotations

import secrets
import shlex
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.module_utils.tree import tree_sha256
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import execute
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.push import push_files
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.source_files import (
    SourceError,
    named_files,
    source_files,
)

MODULE = "ftcluster.cluster.push"


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/push.py."""

    _VALID_ARGS = frozenset(("source", "path", "files"))
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        source, path = Path(self._task.args["source"]), self._task.args["path"].rstrip("/")
        if execute(self, f"test -d {shlex.quote(path)}")["rc"] == 0:
            return {"changed": False}
        if self._task.check_mode:
            return {"changed": True}
        names = self._task.args.get("files")
        try:
            files = source_files(source) if names is None else named_files(source, names)
        except SourceError as error:
            raise AnsibleActionFail(str(error)) from None  # Ansible would print the cause too
        # use a new folder, because another control node may be copying the same files
        new = f"{path}.new-{secrets.token_hex(4)}"
        whole = False
        try:
            sent = push_files(self, files, new)
            arguments = {
                "source": str(source),
                "path": path,
                "from_action": {"new": new, "sha256": tree_sha256(sent)},
            }
            done = self._execute_module(MODULE, arguments, task_vars=task_vars)
            whole = not done.get("failed")
            return {**done, "files": len(files)}
        finally:
            if not whole:
                execute(self, f"rm -rf {shlex.quote(new)}")
