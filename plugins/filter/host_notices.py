# Apache-2.0 (see LICENSE)
"""What makes training on a host slower than it could be, each with what to do about it."""

from __future__ import annotations

from ansible_collections.ftcluster.cluster.plugins.module_utils.cpu import GENERATIONS_WITH_AMX

DOCUMENTATION = r"""
name: host_notices
short_description: What makes training on a host slower than it could be
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Reads the facts of a host; nothing it says keeps the host from taking part.
options:
  _input:
    description: RV(ftcluster.cluster.host_facts#module:facts).
    type: dict
    required: true
"""

EXAMPLES = r"""
notices: "{{ preflight_facts | ftcluster.cluster.host_notices }}"
"""

RETURN = r"""
_value:
  description: One sentence a notice, with what to do about it.
  type: list
  elements: str
"""


def host_notices(facts):
    """Everything worth knowing of one host that does not keep it from training."""
    generation, kernel = facts.get("cpu_generation", "other"), facts.get("kernel", "")
    if facts.get("amx") == "refused":
        return [
            f"its CPU has AMX, but its kernel {kernel} refuses it to programs, so training is "
            "slower; boot Linux 5.16 or newer or a distribution's kernel that supports AMX, or in "
            "a container allow arch_prctl"
        ]
    if facts.get("amx") == "absent" and generation in GENERATIONS_WITH_AMX:
        return [
            f"its CPU is of the generation {generation}, which has AMX, but the hypervisor or the "
            f"kernel {kernel} hides it, so training is slower; have the hypervisor pass the CPU's "
            "features on, or boot Linux 5.16 or newer"
        ]
    return []


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        """The filters of this file by name."""
        return {"host_notices": host_notices}
