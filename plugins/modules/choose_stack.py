#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, which does the work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: choose_stack
short_description: Chooses a set of versions that all hosts of a cluster support
description:
  - Reads the stacks and their locks on the control node, compares them with the hosts' facts, and
    returns the choice, its reason and each host's problems as the fact C(torch_stack_choice).
    Changes nothing on any host.
  - Verifies a bundle and unpacks it into the control node's cache.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
options:
  folder:
    description: The folder with C(stacks.yml) and the locks.
    type: path
    required: true
  name:
    description:
      - The stack. V(auto) chooses the first supported stack that fits every host.
      - If empty, the module chooses the stack of O(bundle), or else O(present), or else the default
        stack.
    type: str
    default: ""
  present:
    description: The cluster's current stack; empty if there is none.
    type: str
    default: ""
  bundle:
    description: A file written by C(ftcluster bundle).
    type: path
  allow_yanked:
    description: True to allow a stack with yanked releases.
    type: bool
    default: false
  allow_unverified:
    description: True to allow a stack with packages that have no hash in its lock.
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
      - Sources of wheels - C(index_url), C(find_links), C(indexes) - to be tested with one package
        that the control node lacks. A problem is reported for the first host.
      - If omitted, nothing is downloaded.
    type: dict
attributes:
  check_mode:
    description: The module never changes anything.
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
