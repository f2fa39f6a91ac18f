# Apache-2.0 (see LICENSE)
"""Compares files and folders with what is wanted before the module runs."""

from __future__ import annotations

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import (
    ModuleUnlessSettled,
    look,
)

FILE = ("regular file", "regular empty file")


def is_settled(found, entry):
    """Whether an entry of the argument `files` certainly needs no change."""
    path, state = entry["path"], entry.get("state", "file")
    owner, group, mode = (entry.get(key) or "" for key in ("owner", "group", "mode"))
    if not found.is_guarded(path, *([owner] if owner else [])):
        return False
    place = found.places.get(path)
    if place is None or state == "absent":
        # only root sees what is in a folder that others may not search
        return state == "absent" and place is None and found.user == "root"
    content = entry.get("content")
    return (
        (place.kind == "directory" if state == "directory" else place.kind in FILE)
        and (place.kind == "directory" or place.links == 1)
        and owner in ("", place.owner)
        and group in ("", place.group)
        and (not mode or int(mode, 8) == place.mode)
        and (content is None or found.has_text(path, content))
    )


class ActionModule(ModuleUnlessSettled):
    """See plugins/modules/files.py."""

    def settled(self, arguments):
        """That nothing changed, if every entry is settled."""
        entries = arguments["files"]
        files = [entry["path"] for entry in entries if entry.get("content") is not None]
        found = look(self, [entry["path"] for entry in entries], files)
        if found and all(is_settled(found, entry) for entry in entries):
            return {"changed": False, "changed_paths": []}
        return None
