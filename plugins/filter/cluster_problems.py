# Apache-2.0 (see LICENSE)
"""What keeps hosts from being a cluster together, each with what to do about it."""

from __future__ import annotations

from collections import Counter

from ansible_collections.ftcluster.cluster.plugins.module_utils.network import is_loopback

DOCUMENTATION = r"""
name: cluster_problems
short_description: What keeps hosts from being a cluster together
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Compares the facts of hosts with each other; pure data in, sentences out.
options:
  _input:
    description: RV(ftcluster.cluster.host_facts#module:facts) of each host, by its inventory name.
    type: dict
    required: true
  requirements:
    description:
      - Key C(clock_seconds), by how much a clock may differ from the other hosts', 5 when left out.
    type: dict
    required: true
"""

EXAMPLES = r"""
problems: "{{ all_facts | ftcluster.cluster.cluster_problems({'clock_seconds': 5}) }}"
"""

RETURN = r"""
_value:
  description: For each host, one sentence a problem with what to do about it.
  type: dict
  sample:
    node0: []
    node1: ["it is the same machine as node0 (10.0.0.10); take one of the two out of the inventory"]
"""


def clocks(hosts, allowed):
    """Clocks that are off by more seconds than allowed; (host, sentence) of each.

    Offsets are against the control node, which may itself be wrong: the median host is the
    reference, and of two middle ones that nearer to the control node.
    """
    offsets = {
        host: (facts["clock_offset_seconds"], facts.get("clock_error_seconds") or 0.0)
        for host, facts in hosts.items()
        if facts.get("clock_offset_seconds") is not None
    }
    if not offsets:
        return
    ranked = sorted(offsets, key=offsets.get)
    middle = ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1]
    reference = min(middle, key=lambda host: abs(offsets[host][0]))
    for host, (offset, error) in offsets.items():
        ahead = offset - offsets[reference][0]
        if abs(ahead) > allowed + error + offsets[reference][1]:
            way = "ahead of" if ahead > 0 else "behind"
            yield (
                host,
                f"its clock is {abs(ahead):.1f} s {way} that of {reference}; "
                "set it by the network: timedatectl set-ntp true, "
                "with systemd-timesyncd or chrony installed",
            )


def prefixes(hosts):
    """Prefixes unlike that of most hosts, or of the first where it is a tie; (host, sentence)."""
    found = {host: facts["prefix"] for host, facts in hosts.items() if facts.get("prefix")}
    if not found:
        return
    usual = Counter(found.values()).most_common(1)[0][0]
    example = next(host for host, prefix in found.items() if prefix == usual)
    for host, prefix in found.items():
        if prefix != usual:
            yield (
                host,
                f"its folder is {prefix}, that of {example} is {usual}, and mpirun needs one path "
                "on all; choose a folder for all hosts with -e ftcluster_prefix=DIR",
            )


def machines(hosts):
    """Hosts that an earlier one already is by another name; (host, sentence) of each."""
    first = {}
    for host, facts in hosts.items():
        address = facts.get("network_address")
        if address:
            other = first.setdefault((address, facts.get("machine_id")), host)
            if other != host:
                yield (
                    host,
                    f"it is the same machine as {other} ({address}); "
                    "take one of the two out of the inventory",
                )


def loopbacks(hosts):
    """Hosts of several that only they themselves can reach; (host, sentence) of each."""
    for host, facts in hosts.items():
        address = facts.get("network_address", "")
        if len(hosts) > 1 and is_loopback(address):
            yield (
                host,
                f"other hosts cannot reach it at {address}; "
                f"set ftcluster_address=ADDRESS for {host} in the inventory",
            )


def accounts(hosts):
    """Hosts without root among hosts with it: ranks would be other users; (host, sentence)."""
    users = {host: facts["rank_user"] for host, facts in hosts.items() if "rank_user" in facts}
    if not any(users.values()):
        return
    example = next(host for host, user in users.items() if user)
    for host, user in users.items():
        if not user:
            yield (
                host,
                f"root cannot be had here, but on {example}, so ranks would run as other users; "
                "give it root too (--ask-become-pass asks for a password), or do without it on "
                "all hosts with -e ftcluster_root=false",
            )


def cluster_problems(facts_by_host, requirements):
    """Every problem that only shows between hosts; a list of sentences for each host."""
    problems = {host: [] for host in facts_by_host}
    for check in (
        clocks(facts_by_host, requirements.get("clock_seconds", 5)),
        accounts(facts_by_host),
        prefixes(facts_by_host),
        machines(facts_by_host),
        loopbacks(facts_by_host),
    ):
        for host, sentence in check:
            problems[host].append(sentence)
    return problems


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        """The filters of this file by name."""
        return {"cluster_problems": cluster_problems}
