#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, where the work is done."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pull
short_description: Copy a folder from a host to the control node
description:
  - Copies all files of a folder over the connection that Ansible has, also with C(become), a piece
    at a time, so that a large model needs little memory.
  - Each file is checked against its SHA-256 on the host and synced to the disk; the folder has its
    name only once it is whole.
  - The host says first which files there are and how large. More than the disk here has room for,
    more than 10,000 files, and names that leave the folder are refused before anything is copied.
    Links and devices are left out.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  path:
    description: The folder on the host.
    type: path
    required: true
  destination:
    description: The folder on the control node. It must not exist, or be empty.
    type: path
    required: true
  newer:
    description:
      - A file on the host; only what was written after it is copied, but for Python's caches.
      - Left out, all files are copied.
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
  description: How many files were copied.
  returned: success
  type: int
  sample: 6
size:
  description: Bytes of all files.
  returned: success
  type: int
  sample: 268000000
"""
