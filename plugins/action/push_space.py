# Apache-2.0 (see LICENSE)
"""Compares sizes with the free space of a host; see plugins/modules/push_space.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.sizes import free_and_needed
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.source_files import (
    SourceError,
    named_files,
    source_files,
)

MODULE = "ftcluster.cluster.push_space"
HINT = (
    "free some space there, or set the cluster up in another folder: "
    "ftcluster setup -e ftcluster_prefix=DIR"
)


class ActionModule(ActionBase):
    """Action plugin of plugins/modules/push_space.py."""

    _VALID_ARGS = frozenset(("folders",))
    _requires_connection = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        folders = self._task.args["folders"]
        measured: dict[str, Any] = self._execute_module(
            MODULE, {"folders": folders}, task_vars=task_vars
        )
        if measured.get("failed"):
            return measured
        by_path = {folder["path"].rstrip("/"): folder for folder in folders}
        places = checked_places(measured.get("places"), by_path)
        try:
            sizes = {place["path"]: size_of(by_path[place["path"]]) for place in places}
        except SourceError as error:
            raise AnsibleActionFail(str(error)) from None  # Ansible would print the cause too
        problems = shortages(places, sizes)
        if problems:
            raise AnsibleActionFail("; ".join([*problems, HINT]))
        return {**measured, "needed_bytes": sum(sizes.values())}


def checked_places(places: Any, paths: Collection[str]) -> list[dict[str, Any]]:
    """Return the places that a host's module has measured.

    Raises:
        AnsibleActionFail: the response is not one of plugins/modules/push_space.py.
    """
    kinds = {"path": str, "folder": str, "device": int, "free_bytes": int}
    if isinstance(places, list) and all(
        isinstance(place, dict)
        and place.keys() == kinds.keys()
        and all(type(place[name]) is kind for name, kind in kinds.items())
        and place["path"] in paths
        for place in places
    ):
        return places
    raise AnsibleActionFail("the host's response about its free space is invalid")


def size_of(folder: Mapping[str, Any]) -> int:
    """Return the bytes of the files of a folder that are copied.

    Raises:
        SourceError: files cannot be copied; the message names them.
    """
    source, names = Path(folder["source"]), folder.get("files")
    files = source_files(source) if names is None else named_files(source, names)
    return sum(path.stat().st_size for path, _ in files)


def shortages(places: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> list[str]:
    """Return a message for each file system of a host that has too little space.

    Args:
        places: file system of each folder that the host lacks, as the module returns them.
        sizes: bytes of each folder, by its path on the host.
    """
    messages = []
    for device in dict.fromkeys(place["device"] for place in places):
        on_device = [place for place in places if place["device"] == device]
        needed = sum(sizes[place["path"]] for place in on_device)
        free = min(place["free_bytes"] for place in on_device)
        if needed > free:
            shown_free, shown_needed = free_and_needed(free, needed)
            messages.append(
                f"the files to copy need {shown_needed} in {on_device[0]['folder']}, but only "
                f"{shown_free} are free"
            )
    return messages
