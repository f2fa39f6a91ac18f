#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, which does the work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pull
short_description: Copies a folder from a host to the control node
description:
  - Copies all files of a folder over Ansible's connection, also with C(become), in pieces, so that
    a large model needs little memory.
  - The SHA-256 of each copy is compared with that of the file on the host, and the copy is synced
    to the disk. The folder gets its final name only when it is complete.
  - The host first lists the files with their sizes. If the folder is too large for the disk,
    contains more than 10,000 files, or contains names that lead out of it, the module fails before
    it copies anything. Links and devices are skipped.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  path:
    description: The folder on the host.
    type: path
    required: true
  destination:
    description: The folder on the control node. It must be missing or empty.
    type: path
    required: true
  newer:
    description:
      - A file on the host. Only files written after it are copied, except Python's caches.
      - By default, all files are copied.
    type: path
"""

EXAMPLES = r"""
- name: Fetch the model
  ftcluster.cluster.pull:
    path: /opt/ftcluster/runs/quickstart-20260131-101500-7f3a/model
    destination: model
"""

RETURN = r"""
files:
  description: Number of copied files.
  returned: success
  type: int
  sample: 6
size:
  description: Size of all files in bytes.
  returned: success
  type: int
  sample: 268000000
"""
