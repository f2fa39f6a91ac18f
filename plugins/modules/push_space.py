#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Measures the free space for folders on the host, for the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_space
short_description: Checks that the hosts have space for the folders that push will copy
description:
  - Compares the sizes of folders of the control node with the free space of the host. Folders that
    the host has already need no space. Fails if the space is too small for the others. Changes
    nothing.
version_added: 0.2.0
author: The ftcluster authors (@ftcluster)
options:
  folders:
    description:
      - Folders to copy, each with the options of M(ftcluster.cluster.push) - C(source) on the
        control node, C(path) on the host and optionally C(files).
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    description: The module only measures, so check mode makes no difference.
    support: full
"""

EXAMPLES = r"""
- name: Check the space for the data
  ftcluster.cluster.push_space:
    folders:
      - source: ./mrpc
        path: /opt/ftcluster/data/mrpc-4f7d1c0b2a9e
"""

RETURN = r"""
needed_bytes:
  description: Bytes of the folders that the host lacks.
  returned: success
  type: int
places:
  description:
    - A place for each folder that the host lacks - its C(path), the existing C(folder) for it,
      and the C(device) and the C(free_bytes) of that folder.
  returned: success
  type: list
  elements: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import (
    free_bytes,
    nearest_existing,
    os_problem,
)


def places_of(paths: list[str]) -> list[dict[str, object]]:
    """Return the place of each path that does not exist.

    Raises:
        OSError: a folder cannot be read.
    """
    places = []
    for path in map(Path, paths):
        folder = nearest_existing(path)
        if folder != path:
            places.append(
                {
                    "path": str(path),
                    "folder": str(folder),
                    "device": folder.stat().st_dev,
                    "free_bytes": free_bytes(folder),
                }
            )
    return places


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "folders": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        places = places_of([folder["path"] for folder in module.params["folders"]])
    except OSError as error:
        module.fail_json(msg=os_problem(error, ""))
    module.exit_json(changed=False, places=places)


if __name__ == "__main__":
    main()
