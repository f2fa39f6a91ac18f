# Apache-2.0 (see LICENSE)
"""Reads the link `current` before the module runs."""

from __future__ import annotations

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import (
    ModuleUnlessSettled,
    look,
)


class ActionModule(ModuleUnlessSettled):
    """See plugins/modules/stack_link.py."""

    def settled(self, arguments):
        """The current stack, if it is the wanted one."""
        path, link = arguments.get("path"), f"{arguments['prefix'].rstrip('/')}/current"
        if arguments.get("state", "current") != "current" or not path:
            return None
        found = look(self, [link], more=f'tell current "$(readlink -- {link})"')
        if found and found.is_guarded(link) and found.said.get("current") == [path]:
            return {"changed": False, "current": path}
        return None
