#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Reads and changes the cluster's record, a file on the head that all control nodes share."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_record
short_description: Changes the record that all control nodes of a cluster share
description:
  - Keeps drained hosts, measured all-reduces and tunings in C(<prefix>/cluster.json) on the head.
  - Sets and removes single entries under a lock, so that concurrent changes of two control nodes
    are not lost.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.keeps
  - ftcluster.cluster.options.prefix
options:
  changes:
    description:
      - Entries to set, as a mapping of each section - C(drained), C(all_reduce) or C(tunings) - to
        its entries by name.
      - An entry whose value is null is removed.
    type: dict
    default: {}
  start:
    description: Initial text of the record if there is none, such as the record of a previous head.
    type: str
    default: ""
  state:
    description: V(absent) removes the file.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Drain a host
  ftcluster.cluster.cluster_record:
    prefix: /opt/ftcluster
    changes: {drained: {xeon3: {why: memory errors, since: "2026-01-31"}}}
"""

RETURN = r"""
record:
  description: The text of the record afterwards; empty if there is none.
  returned: success
  type: str
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ftcluster.cluster.plugins.module_utils.alone import alone_in
from ansible_collections.ftcluster.cluster.plugins.module_utils.record import (
    merged,
    parse_record,
    refuse_unmeasured,
    rendered,
)
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import (
    read_text,
    refuse_unguarded,
    remove,
    write_text,
)

NAME = "cluster.json"
READABLE = 0o644  # the login users of all control nodes read the file, without root


def settle(
    path: Path, state: str, start: str, changes: Mapping[str, Any], check_mode: bool
) -> tuple[bool, str]:
    """Bring the file into the requested state; return (changed, text afterwards)."""
    before = read_text(path)
    if state == "absent":
        if before is not None and not check_mode:
            remove(path)
        return before is not None, ""
    sections = merged(parse_record(before or start), changes)
    if before is None and not any(sections.values()):
        return False, ""
    text = rendered(sections)
    if (before or "").strip() == text:
        return False, text
    if not check_mode:
        write_text(path, text + "\n", READABLE)
    return True, text


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "changes": {"type": "dict", "default": {}},
            "start": {"type": "str", "default": ""},
            "state": {"choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = Path(given["prefix"]) / NAME
    try:
        refuse_unmeasured(given["changes"])
        refuse_unguarded(path)
        with alone_in(path.parent):
            changed, text = settle(
                path, given["state"], given["start"], given["changes"], module.check_mode
            )
    except OSError as error:
        hint = (
            "; only the user who set up the cluster may write it" if error.errno in (1, 13) else ""
        )
        module.fail_json(msg=f"{error.filename or path}: {error.strerror}{hint}")
    except ValueError as error:
        module.fail_json(msg=f"{path}: {error}")
    module.exit_json(changed=changed, record=text)


if __name__ == "__main__":
    main()
