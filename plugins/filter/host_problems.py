# Apache-2.0 (see LICENSE)
"""What keeps a host from being part of a training cluster, each with what to do about it."""

from __future__ import annotations

import re

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
    description:
      - Keys C(machine), C(python), C(memory_bytes), C(free_bytes), and where it is needed C(root)
        or C(firewall), which needs root.
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

# as useradd takes it; it becomes a word of limits.conf. Empty: the login user trains
ACCOUNT = re.compile(r"([a-z_][a-z0-9_-]{0,31})?")


def version(text):
    """3.11.7 as (3, 11, 7)."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def gigabytes(size):
    """A size for a person."""
    return f"{size / 1e9:.1f} GB"


def host_problems(facts, requirements):
    """Every problem of one host, as sentences that end with what to do."""
    problems = []
    because = facts.get("no_root_because") or "ftcluster_root is false"
    give = "give it (-K asks for a password)"
    elsewhere = "choose another folder with -e ftcluster_prefix=DIR"
    machine, prefix = facts["machine"], facts["prefix"]
    pythons = [python["version"] for python in facts["pythons"]]
    if facts.get("wrong_password"):
        problems.append("sudo refuses the password that was given; give the right one, or none")
    elif requirements.get("root") and not facts["can_become_root"]:
        problems.append(
            f"root is required, but cannot be had here: {because}; {give}, or do without it with "
            "ftcluster_root=true"
        )
    elif requirements.get("firewall") and not facts["can_become_root"]:
        problems.append(
            f"the firewall is required and needs root, which cannot be had here: {because}; "
            f"{give}, or do without it with ftcluster_firewall=true"
        )
    if not ACCOUNT.fullmatch(facts.get("rank_user", "")):
        problems.append(
            f"{facts['rank_user']!a} is not a name of an account; set ftcluster_user to small "
            "letters, digits, dashes and underscores"
        )
    if machine != requirements["machine"]:
        problems.append(
            f"its architecture is {machine}, the stacks are built for {requirements['machine']}; "
            "take it out of the inventory"
        )
    if max(map(version, pythons)) < version(requirements["python"]):
        problems.append(
            f"Python {', '.join(pythons)} is too old, {requirements['python']} or newer is needed; "
            "install one"
        )
    if not facts["prefix_writable"]:
        problems.append(f"{prefix} cannot be written; {elsewhere}")
    if facts["prefix_refused"]:
        problems.append(facts["prefix_refused"])
    needed = requirements["free_bytes"]
    if facts["free_bytes"] < needed:
        problems.append(
            f"{gigabytes(facts['free_bytes'])} free at {prefix}, {gigabytes(needed)} are needed; "
            f"free some space or {elsewhere}"
        )
    if facts["memory_bytes"] < requirements["memory_bytes"]:
        problems.append(
            f"{gigabytes(facts['memory_bytes'])} of memory, "
            f"{gigabytes(requirements['memory_bytes'])} are needed; take a larger host"
        )
    return problems


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        """The filters of this file by name."""
        return {"host_problems": host_problems}
