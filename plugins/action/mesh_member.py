# Apache-2.0 (see LICENSE)
"""Reads authorized_keys and the host keys before the module runs."""

from __future__ import annotations

from ansible_collections.ftcluster.cluster.plugins.modules.mesh_member import (
    KEYS,
    entry,
    key_of,
    with_line,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import (
    TOLD,
    ModuleUnlessSettled,
    look,
)

HOME = '"$(getent passwd "$(id -u)" | cut -d: -f6)"'
LINES = f"""cat {HOME}/.ssh/authorized_keys {TOLD.format("line")}
for file in {KEYS}; do cat "$file" {TOLD.format("key")}; done"""


class ActionModule(ModuleUnlessSettled):
    """See plugins/modules/mesh_member.py."""

    def settled(self, arguments):
        """The host keys, if the line for the head is there."""
        if arguments.get("state", "present") != "present" or not arguments.get("public_key"):
            return None
        found = look(self, [], more=LINES)
        if found is None:
            return None
        text = "".join(f"{line}\n" for line in found.said.get("line", []))
        keys = list(filter(None, map(key_of, found.said.get("key", []))))
        folder = arguments.get("folder", "")
        line = entry(arguments["public_key"], arguments.get("address", ""), folder)
        if keys and line in text and with_line(text, line, folder) == text:
            return {"changed": False, "host_keys": keys}
        return None
