#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Documentation of the action plugin of the same name, which does the work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: verify
short_description: Runs verify on the head while the control node connects to the hosts' ports
description:
  - Runs C(python -m ftcluster_train.health.verify) on the head, with a request on its stdin.
  - Meanwhile the control node repeatedly tries to connect to ports that the ranks open on each
    host, for at most a second each. The control node is not a host of the cluster, so the hosts'
    firewalls must block it. The ranks report the connections that they receive.
  - Changes nothing. The work is done by an action plugin.
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
    description: Input of verify. The ports to open are added to it, by host.
    type: dict
    required: true
  calls:
    description:
      - The hosts to connect to, each with C(name), C(address) and C(ssh_port) as seen from this
        machine, and C(local_ports) of the host.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Start a rank on every host and compare their reports
  ftcluster.cluster.verify:
    python: /opt/ftcluster/current/bin/python
    request: "{{ request }}"
    calls:
      - {name: node1, address: 10.0.0.11, ssh_port: 22, local_ports: [32768-60999]}
"""

RETURN = r"""
report:
  description: The validated report of verify; null if it printed none.
  returned: always
  type: dict
said:
  description: Other output of verify, or the reason why its report was rejected.
  returned: always
  type: str
reached:
  description: The hosts whose SSH port this machine reached directly.
  returned: always
  type: list
  elements: str
  sample: [node1]
"""
