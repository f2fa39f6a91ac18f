# Apache-2.0 (see LICENSE)
"""A problem or warning of verify as one sentence."""

from __future__ import annotations

DOCUMENTATION = r"""
name: finding
short_description: A problem or warning of verify as one sentence
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Names the host, what was found and what to do about it.
options:
  _input:
    description: One of C(problems) or C(warnings) that C(python -m ftcluster_train.verify) prints.
    type: dict
    required: true
"""

EXAMPLES = r"""
text: "{{ verify_report.warnings | map('ftcluster.cluster.finding') | join('\n') }}"
"""

RETURN = r"""
_value:
  description: The sentence.
  type: str
  sample: "node1: its link to node2 is slow: 12 MB/s, 180 us; look at cable and switch port"
"""


def finding(found):
    """The sentence; parts that are empty are left out."""
    if isinstance(found, str):  # what an older package on the hosts says
        return found
    start = f"{found['host']}: " if found["host"] else ""
    return start + found["what"] + (f"; {found['hint']}" if found["hint"] else "")


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        """The filters of this file by name."""
        return {"finding": finding}
