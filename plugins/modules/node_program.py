#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, which does the work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_program
short_description: Runs a program of the node package
description:
  - Runs a Python module of C(ftcluster_train) with the Python of a stack, in the folder C(/), so
    that nothing is imported from the user's home.
  - Fails as M(ansible.builtin.command) does, with C(rc), C(stdout) and C(stderr).
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.skips
options:
  stack:
    description: The stack's folder.
    type: path
    required: true
  program:
    description: The module's name in C(ftcluster_train).
    type: str
    required: true
  arguments:
    description: The program's arguments.
    type: list
    elements: str
    default: []
  stdin:
    description: Standard input of the program. Secrets belong here and not in O(arguments).
    type: str
  compiles:
    description: >-
      True to keep the bytecode of imported modules, in E(PYTHONPYCACHEPREFIX) or beside the
      sources; for programs that import torch.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: List the runs
  ftcluster.cluster.node_program:
    stack: /opt/ftcluster/current
    program: host.runs
    arguments: [list, /opt/ftcluster/runs]
  register: runs
  changed_when: false
"""

RETURN = r"""
rc:
  description: The program's exit code.
  returned: always
  type: int
stdout:
  description: The program's output.
  returned: always
  type: str
stderr:
  description: The program's error output.
  returned: always
  type: str
"""
