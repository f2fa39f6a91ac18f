# Apache-2.0 (see LICENSE)
"""Renders a finding as one line of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DOCUMENTATION = r"""
name: finding
short_description: Renders a finding as one line of text
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Joins the host, the problem and the advice.
options:
  _input:
    description: >-
      A problem, notice or warning of preflight or verify, with C(what), and optionally C(host) and
      C(hint).
    type: dict
    required: true
"""

EXAMPLES = r"""
text: "{{ verify_report.warnings | map('ftcluster.cluster.finding') | join('\n') }}"
"""

RETURN = r"""
_value:
  description: The line.
  type: str
  sample: "node1: its link to node2 is slow: 12 MB/s, 180 us; check cable and switch port"
"""


def finding(found: Mapping[str, str]) -> str:
    """Return the finding as a line; skip empty or missing parts."""
    start = f"{found['host']}: " if found.get("host") else ""
    return start + found["what"] + (f"; {found['hint']}" if found.get("hint") else "")


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"finding": finding}
