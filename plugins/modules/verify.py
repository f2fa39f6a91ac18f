#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""The documentation of what plugins/action/verify.py does on the control node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: verify
short_description: Runs verify on the head while the control node calls the hosts' ports
description:
  - Runs C(python -m ftcluster_train.health.verify) on the head, with a request on its stdin.
  - Meanwhile the control node tries to connect to ports that the ranks open on each host, again and
    again, a second each at most. It is not one of the cluster, so the hosts' firewalls must not let
    it in. What comes in is told by the ranks.
  - Is an action plugin. Changes nothing.
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
extends_documentation_fragment:
  - ftcluster.cluster.attributes.reads
options:
  python:
    description: The stack's Python on the head.
    type: path
    required: true
  request:
    description: What verify reads. The ports to open are added to it, by host.
    type: dict
    required: true
  calls:
    description:
      - The hosts to call, each with C(name), C(address) and C(ssh_port) as this machine reaches
        it, and its C(local_ports).
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Start a rank on every host and compare what they say
  ftcluster.cluster.verify:
    python: /opt/ftcluster/current/bin/python
    request: "{{ request }}"
    calls:
      - {name: node1, address: 10.0.0.11, ssh_port: 22, local_ports: [32768-60999]}
"""

RETURN = r"""
report:
  description: What verify has found, checked against its form; none where it printed no report.
  returned: always
  type: dict
said:
  description: What else it printed, or why its report was refused.
  returned: always
  type: str
reached:
  description: The hosts whose SSH port this machine reached by itself.
  returned: always
  type: list
  elements: str
  sample: [node1]
"""
