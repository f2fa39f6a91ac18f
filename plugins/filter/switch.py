# Apache-2.0 (see LICENSE)
"""Normalizes the value of a setting that can be on, off or required."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: switch
short_description: Normalizes a switch that is on, off or required
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description:
  - Accepts Ansible's spellings of true and false, and C(required).
  - Anything else fails, because a typo must not disable the protection of the hosts.
options:
  _input:
    description: The variable's value.
    type: raw
    required: true
  name:
    description: The variable's name, for the message.
    type: str
    required: true
"""

EXAMPLES = r"""
root: "{{ ftcluster_root | default(true) | ftcluster.cluster.switch('ftcluster_root') }}"
"""

RETURN = r"""
_value:
  description: C(true), C(false) or C(required).
  type: str
"""

WORDS = {
    "true": ("true", "yes", "on", "1", "y", "t"),
    "false": ("false", "no", "off", "0", "n", "f"),
    "required": ("required",),
}


def switch(value: object, name: str) -> str:
    """Return the value in canonical form."""
    given = str(value).strip().lower()
    for word, others in WORDS.items():
        if given in others:
            return word
    raise AnsibleFilterError(f"{name} is '{value}'; set it to true, false or required")


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"switch": switch}
