# Apache-2.0 (see LICENSE)
"""Keeps one of a host's findings about too little disk space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DOCUMENTATION = r"""
name: largest_need
short_description: Keeps one of a host's findings about too little disk space
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - Preflight and the choice of a stack each check the space at the prefix. If both find too little,
    only the finding that needs the most space is kept.
options:
  _input:
    description: >-
      Problems of a host. A problem about space contains C(needed_bytes), the needed bytes as a
      string.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
problems: "{{ preflight_problems | ftcluster.cluster.largest_need }}"
"""

RETURN = r"""
_value:
  description: The problems in the same order.
  type: list
  elements: dict
"""


def largest_need(findings: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return a host's findings; of those about disk space, keep the one that needs the most.

    A user's requirement may be a float, such as 5e9 in JSON.

    >>> largest_need([{"needed_bytes": "9"}, {"what": "old"}, {"needed_bytes": "10"}])
    [{'what': 'old'}, {'needed_bytes': '10'}]
    """
    most = max((float(finding.get("needed_bytes", 0)) for finding in findings), default=0)
    return [finding for finding in findings if float(finding.get("needed_bytes", most)) == most]


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"largest_need": largest_need}
