#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, where the work is done."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push
short_description: Copies a folder to the hosts, once
description:
  - Streams the files of a folder of the control node into a folder of the host, as the user that
    the task runs as, so that private data are never in a place that others can read. A file that
    is not for everybody to read or to run at home is not on the host either.
  - The folder gets its name when it is whole. One that is there is left as it is, so let its name
    change with its contents.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  source:
    description: The folder on the control node.
    type: path
    required: true
  path:
    description: The folder on the host.
    type: path
    required: true
  files:
    description: Names of the files in it that are copied; all of them by default.
    type: list
    elements: str
attributes:
  check_mode:
    description: Says whether it would be copied.
    support: full
"""

EXAMPLES = r"""
- name: Copy the data
  ftcluster.cluster.push:
    source: ./mrpc
    path: /opt/ftcluster/data/mrpc-4f7d1c0b2a9e
"""

RETURN = r"""
files:
  description: How many files were copied.
  returned: changed
  type: int
"""
