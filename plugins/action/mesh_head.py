# Apache-2.0 (see LICENSE)
"""Compares the head's SSH files with what is wanted before the module runs."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.modules.mesh_head import (
    KEY,
    RECORD,
    merged,
    parse_mesh,
    texts_of,
    wrong_words,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.look import (
    TOLD,
    ModuleUnlessSettled,
    look,
)


class ActionModule(ModuleUnlessSettled):
    """See plugins/modules/mesh_head.py."""

    def settled(self, arguments):
        """The key and the address, if all files are as they should be."""
        folder = arguments["folder"].rstrip("/")
        keys = [f"{folder}/{KEY}", f"{folder}/{KEY}.pub"]
        names = ("known_hosts", "ssh_config", RECORD)
        told = f"cat {keys[1]} {TOLD.format('key')}\ncat {folder}/{RECORD} {TOLD.format('record')}"
        found = look(self, keys, [f"{folder}/{name}" for name in names], told)
        if found is None or not all(key in found.places for key in keys):
            return None
        try:
            before = parse_mesh("\n".join(found.said.get("record", [])), f"{folder}/{RECORD}")
        except ValueError:
            return None  # the module says so
        address = arguments.get("address") or before.get("address", "")
        given = arguments.get("members") or []
        if given:
            if wrong_words(given):
                return None
            members = merged(before.get("members", []), given, arguments["names"])
            texts = texts_of(members, Path(folder), address)
            if not all(found.has_text(f"{folder}/{name}", texts[name]) for name in names):
                return None
        keys = found.said.get("key", [])
        if len(keys) != 1:
            return None
        return {"changed": False, "public_key": keys[0], "address": address}
