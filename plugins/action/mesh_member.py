# Apache-2.0 (see LICENSE)
"""Looks whether the head is let in already, which takes a third of the time of the module."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.modules.mesh_member import (
    KEYS,
    entry,
    key_of,
    with_line,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import TOLD, look

MODULE = "ftcluster.cluster.mesh_member"
HOME = '"$(getent passwd "$(id -u)" | cut -d: -f6)"'
LINES = f"""cat {HOME}/.ssh/authorized_keys {TOLD.format("line")}
for file in {KEYS}; do cat "$file" {TOLD.format("key")}; done"""


class ActionModule(ActionBase):
    """Runs the module where something may be to do; see plugins/modules/mesh_member.py."""

    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        arguments = self._task.args
        if arguments.get("state", "present") == "present" and arguments.get("public_key"):
            found = look(self, [], more=LINES)
            text = "".join(f"{line}\n" for line in found.said.get("line", [])) if found else ""
            keys = list(filter(None, map(key_of, found.said.get("key", [])))) if found else []
            line = entry(arguments["public_key"], arguments.get("address", ""))
            if keys and line in text and with_line(text, line) == text:
                return {"changed": False, "host_keys": keys}
        return self._execute_module(MODULE, task_vars=task_vars)
