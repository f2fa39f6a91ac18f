# Apache-2.0 (see LICENSE)
"""Looks whether all is there already, which takes a third of the time of the module."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import look

MODULE = "ftcluster.cluster.files"
FILE = ("regular file", "regular empty file")


def is_settled(found, entry):
    """Whether an entry of the module's argument `files` certainly needs nothing.

    Takes what `look` found.
    """
    path, state = entry["path"], entry.get("state", "file")
    owner, group, mode = (entry.get(key) or "" for key in ("owner", "group", "mode"))
    if not found.is_guarded(path, *([owner] if owner else [])):
        return False
    place = found.places.get(path)
    if place is None or state == "absent":
        # a folder that may not be searched hides what is in it from all but root
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


class ActionModule(ActionBase):
    """Runs the module where something may be to do; see plugins/modules/files.py."""

    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        try:
            if self._is_settled(self._task.args["files"]):
                return {"changed": False, "changed_paths": []}
        except (KeyError, TypeError, AttributeError, ValueError):
            pass  # arguments that the module refuses in words
        return self._execute_module(MODULE, task_vars=task_vars)

    def _is_settled(self, entries):
        files = [entry["path"] for entry in entries if entry.get("content") is not None]
        found = look(self, [entry["path"] for entry in entries], files)
        return found is not None and all(is_settled(found, entry) for entry in entries)
