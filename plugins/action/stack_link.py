# Apache-2.0 (see LICENSE)
"""Looks whether the link leads there already, which takes a third of the time of the module."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import look

MODULE = "ftcluster.cluster.stack_link"


class ActionModule(ActionBase):
    """Runs the module where something may be to do; see plugins/modules/stack_link.py."""

    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        arguments = self._task.args
        prefix, path = str(arguments.get("prefix")), arguments.get("path")
        if arguments.get("state", "current") == "current" and path:
            link = f"{prefix.rstrip('/')}/current"
            found = look(self, [link], more=f'tell current "$(readlink -- {link})"')
            if found and found.is_guarded(link) and found.said.get("current") == [path]:
                return {"changed": False, "current": path}
        return self._execute_module(MODULE, task_vars=task_vars)
