# Apache-2.0 (see LICENSE)
"""Finds the reasons why hosts cannot form one cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.network import is_loopback

DOCUMENTATION = r"""
name: cluster_problems
short_description: Finds the reasons why hosts cannot form one cluster
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Compares the facts of the hosts with each other.
options:
  _input:
    description: RV(ftcluster.cluster.host_facts#module:facts) of each host, by its inventory name.
    type: dict
    required: true
  requirements:
    description:
      - Key C(clock_seconds), the maximum difference between two hosts' clocks; 5 by default.
    type: dict
    required: true
"""

EXAMPLES = r"""
problems: "{{ all_facts | ftcluster.cluster.cluster_problems({'clock_seconds': 5}) }}"
"""

RETURN = r"""
_value:
  description: The problems of each host, with C(what) and C(hint).
  type: dict
  sample:
    node0: []
    node1:
      - what: it is the same machine as node0 (10.0.0.10)
        hint: remove one of the two from the inventory
"""


Hosts = Mapping[str, Mapping[str, Any]]  # facts of each host by name
Findings = Iterator[tuple[str, str, str]]  # tuples of host, problem and hint


def clocks(hosts: Hosts, allowed: float) -> Findings:
    """Yield the hosts whose clocks differ from the median host's by more than `allowed` seconds.

    The control node's clock cannot be the reference, because it may be wrong. If there are two
    middle hosts, the reference is the host whose clock is nearer to the control node's.
    """
    offsets = {
        host: (facts["clock_offset_seconds"], facts.get("clock_error_seconds") or 0.0)
        for host, facts in hosts.items()
        if facts.get("clock_offset_seconds") is not None
    }
    if not offsets:
        return
    ranked = sorted(offsets, key=lambda host: offsets[host])
    middle = ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1]
    reference = min(middle, key=lambda host: abs(offsets[host][0]))
    for host, (offset, error) in offsets.items():
        ahead = offset - offsets[reference][0]
        if abs(ahead) > allowed + error + offsets[reference][1]:
            way = "ahead of" if ahead > 0 else "behind"
            what = f"its clock is {abs(ahead):.1f} s {way} the clock of {reference}"
            hint = "synchronize it: timedatectl set-ntp true, with systemd-timesyncd or chrony"
            yield host, what, hint


def accounts(hosts: Hosts) -> Findings:
    """Yield the hosts without root if other hosts have it: ranks would run as different users."""
    users = {host: facts["rank_user"] for host, facts in hosts.items() if "rank_user" in facts}
    example = next((host for host, user in users.items() if user), "")
    for host, user in users.items():
        if example and not user:
            reason = hosts[host].get("no_root_because")
            why = f" ({reason})" if reason else ""
            what = (
                f"root is available on {example}, but not here{why}, so ranks would run as "
                "different users"
            )
            hint = (
                "make root available here too (--ask-become-pass asks for a password), or use root "
                "on no host with -e ftcluster_root=false"
            )
            yield host, what, hint


def prefixes(hosts: Hosts) -> Findings:
    """Yield hosts whose prefix differs from the most frequent prefix (in a tie, the first)."""
    prefixes_of = {host: facts["prefix"] for host, facts in hosts.items() if facts.get("prefix")}
    usual = [prefix for prefix, _count in Counter(prefixes_of.values()).most_common(1)]
    examples = [host for host, prefix in prefixes_of.items() if prefix in usual]
    for host, prefix in prefixes_of.items():
        if prefix not in usual:
            what = (
                f"its folder is {prefix}, but the folder of {examples[0]} is {usual[0]}; mpirun "
                f"needs the same path on all hosts"
            )
            yield host, what, "choose a folder for all hosts with -e ftcluster_prefix=DIR"


def machines(hosts: Hosts) -> Findings:
    """Yield hosts that are the same machine as an earlier host."""
    first: dict[tuple[Any, Any], str] = {}
    for host, facts in hosts.items():
        address = facts.get("network_address")
        other = first.setdefault((address, facts.get("machine_id")), host)
        if address and other != host:
            what = f"it is the same machine as {other} ({address})"
            yield host, what, "remove one of the two from the inventory"


def addresses(hosts: Hosts) -> Findings:
    """Yield hosts whose address other hosts or mpirun cannot use, in a cluster of several hosts."""
    for host, facts in hosts.items() if len(hosts) > 1 else ():
        address = facts.get("network_address", "")
        hint = f"set ftcluster_address=ADDRESS for {host} in the inventory"
        if is_loopback(address):
            yield host, f"other hosts cannot reach it at {address}", hint
        elif ":" in address:
            what = f"its address is {address}, but mpirun reaches hosts only over IPv4"
            yield host, what, f"give the host an IPv4 address that the other hosts reach, or {hint}"


def currencies(hosts: Hosts) -> Findings:
    """Yield the hosts whose price is not in the currency of the first price."""
    prices = {host: facts["price_per_hour"] for host, facts in hosts.items()
              if facts.get("price_per_hour")}  # fmt: skip
    first = next(iter(prices), "")
    for host, price in prices.items():
        currency, usual_currency = (text.partition(" ")[2] for text in (price, prices[first]))
        if currency != usual_currency:
            what = f"its price is {price}, but the price of {first} is {prices[first]}"
            yield host, what, "use one currency in ftcluster_price_per_hour of all hosts"


def cluster_problems(
    facts_by_host: Hosts, requirements: Mapping[str, Any]
) -> dict[str, list[dict[str, str]]]:
    """Return the list of problems between hosts, by host."""
    problems: dict[str, list[dict[str, str]]] = {host: [] for host in facts_by_host}
    for findings in (
        clocks(facts_by_host, requirements.get("clock_seconds", 5)),
        accounts(facts_by_host),
        prefixes(facts_by_host),
        machines(facts_by_host),
        addresses(facts_by_host),
        currencies(facts_by_host),
    ):
        for host, what, hint in findings:
            problems[host].append({"what": what, "hint": hint})
    return problems


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"cluster_problems": cluster_problems}
