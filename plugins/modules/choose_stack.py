#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, where the work is done."""

from __future__ import annotations

DOCUMENTATION = r"""
module: choose_stack
short_description: Chooses a set of versions that all hosts of a cluster can have
description:
  - Reads the stacks and their locks on the control node, compares them with what the hosts are, and
    tells the choice, its reason and each host's problems as the fact C(torch_stack_choice). Changes
    nothing on any host.
  - Unpacks and verifies a bundle into the control node's cache.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  folder:
    description: The folder with C(stacks.yml) and the locks.
    type: path
    required: true
  name:
    description:
      - The stack. V(auto) takes the first supported one that every host can have.
      - Empty, that of O(bundle), else O(present), else the default.
    type: str
    default: ""
  present:
    description: The stack that the cluster has; empty where it has none.
    type: str
    default: ""
  bundle:
    description: A file that C(ftcluster bundle) has written.
    type: path
  allow_yanked:
    description: Whether a stack may have yanked releases.
    type: bool
    default: false
  allow_unverified:
    description: Whether a stack may have packages of which its lock has no hash.
    type: bool
    default: false
  cache:
    description: The folder on the control node for wheels.
    type: path
  hosts:
    description: RV(ftcluster.cluster.host_facts#module:facts) of each host, by its inventory name.
    type: dict
    default: {}
  sources:
    description:
      - Where wheels come from - C(index_url), C(find_links), C(indexes) - to be tried with one
        package that the control node does not have. A problem of it is one of the first host.
      - Without it, nothing is downloaded.
    type: dict
attributes:
  check_mode:
    description: Nothing is changed in any case.
    support: full
"""

EXAMPLES = r"""
- name: Choose
  ftcluster.cluster.choose_stack:
    folder: "{{ role_path }}/files"
    name: auto
    hosts: {node0: "{{ preflight_facts }}"}
  run_once: true
"""

RETURN = r"""
choice:
  description: The keys C(stack), C(why), C(folder), C(pythons), C(problems) and more.
  returned: success
  type: dict
"""
