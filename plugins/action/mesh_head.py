# Apache-2.0 (see LICENSE)
"""Looks whether all is there already, which takes a third of the time of the module."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.modules.mesh_head import (
    KEY,
    RECORD,
    merged,
    texts_of,
    wrong_words,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import TOLD, look

MODULE = "ftcluster.cluster.mesh_head"


class ActionModule(ActionBase):
    """Runs the module where something may be to do; see plugins/modules/mesh_head.py."""

    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        try:
            same = self._look(self._task.args)
        except (KeyError, TypeError, AttributeError, ValueError):
            same = None  # arguments, or a record, that the module refuses in words or mends
        return same or self._execute_module(MODULE, task_vars=task_vars)

    def _look(self, arguments):
        """The result where certainly nothing is to do."""
        folder = arguments["folder"].rstrip("/")
        keys = [f"{folder}/{KEY}", f"{folder}/{KEY}.pub"]
        names = ("known_hosts", "ssh_config", RECORD)
        told = f"cat {keys[1]} {TOLD.format('key')}\ncat {folder}/{RECORD} {TOLD.format('record')}"
        found = look(self, keys, [f"{folder}/{name}" for name in names], told)
        if found is None or not all(key in found.places for key in keys):
            return None
        before = json.loads("\n".join(found.said.get("record", [])) or "{}")
        address = arguments.get("address") or before.get("address", "")
        given = arguments.get("members") or []
        if given:
            if wrong_words(given):
                return None
            members = merged(before.get("members", []), given, arguments["names"])
            texts = texts_of(members, Path(folder), address)
            if not all(found.has_text(f"{folder}/{name}", texts[name]) for name in names):
                return None
        (key,) = found.said["key"]
        return {"changed": False, "public_key": key, "address": address}
