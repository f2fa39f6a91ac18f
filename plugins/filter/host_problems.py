# Apache-2.0 (see LICENSE)
"""What keeps a host from being part of a training cluster, each with what to do about it."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_problems
short_description: What keeps a host from being part of a training cluster
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Compares the facts of a host with what is required; pure data in, sentences out.
options:
  _input:
    description: RV(ftcluster.cluster.host_facts#module:facts).
    type: dict
    required: true
  requirements:
    description: Keys C(free_bytes), C(free_bytes_with_stack), C(memory_bytes), C(python), C(machine).
    type: dict
    required: true
"""

EXAMPLES = r"""
problems: "{{ preflight_facts | ftcluster.cluster.host_problems(preflight_requirements) }}"
"""

RETURN = r"""
_value:
  description: One sentence a problem, with what to do about it.
  type: list
  elements: str
"""

GIGABYTE = 10**9


def version(text):
    """3.11.7 as (3, 11, 7)."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def host_problems(facts, requirements):
    """Every problem of one host, as sentences that end with what to do."""
    problems = []
    if facts["machine"] != requirements["machine"]:
        problems.append(
            "its architecture is {0}, the stacks are built for {1}; take it out of the inventory".format(
                facts["machine"], requirements["machine"]
            )
        )
    if version(facts["python"]) < version(requirements["python"]):
        problems.append(
            "Python {0} is too old, {1} or newer is needed; install one and set "
            "ansible_python_interpreter".format(facts["python"], requirements["python"])
        )
    if not facts["python_has_venv"]:
        problems.append(
            "its Python cannot make environments (no venv or ensurepip); "
            "install the package python3-venv"
        )
    if not facts["prefix_writable"]:
        problems.append(
            "{0} cannot be written; choose another folder with -e ftcluster_prefix=DIR".format(
                facts["prefix"]
            )
        )
    needed = requirements["free_bytes_with_stack" if facts["has_stack"] else "free_bytes"]
    if facts["free_bytes"] < needed:
        problems.append(
            "{0:.1f} GB free at {1}, {2:.1f} GB are needed; free some space or choose another "
            "folder with -e ftcluster_prefix=DIR".format(
                facts["free_bytes"] / GIGABYTE,
                facts["prefix"],
                needed / GIGABYTE,
            )
        )
    if facts["memory_bytes"] < requirements["memory_bytes"]:
        problems.append(
            "{0:.1f} GB of memory, {1:.1f} GB are needed; take a larger host".format(
                facts["memory_bytes"] / GIGABYTE, requirements["memory_bytes"] / GIGABYTE
            )
        )
    return problems


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        """The filters of this file by name."""
        return {"host_problems": host_problems}
