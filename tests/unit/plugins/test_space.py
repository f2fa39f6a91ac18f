"""Findings about disk space: one per host, with sizes that differ as texts."""

import re

from ansible_collections.ftcluster.cluster.plugins.filter.host_findings import host_findings
from ansible_collections.ftcluster.cluster.plugins.filter.largest_need import largest_need
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stack_choice import space_problems

REQUIREMENTS = {
    "free_bytes": 100_000_000, "memory_bytes": 1, "machine": "x86_64", "python": "3.10",
}  # fmt: skip


def test_a_full_disk_is_one_finding_with_the_larger_need() -> None:
    free = 97_300_000
    facts = {
        "can_become_root": True, "machine": "x86_64", "pythons": [{"version": "3.12.3"}],
        "prefix": "/opt/ftcluster", "prefix_writable": True, "prefix_refused": None,
        "free_bytes": free, "memory_bytes": 9, "price_per_hour": "", "rank_user": "",
    }  # fmt: skip
    general = host_findings(facts, REQUIREMENTS)["problems"]
    of_stack = space_problems(2_100_000_000, free, "/opt/ftcluster", "native")
    assert len(general) == len(of_stack) == 1
    other = {"what": "its clock is off", "hint": "set it"}
    assert largest_need([*general, other, *of_stack]) == [other, *of_stack]
    assert largest_need([*general, other]) == [*general, other]
    sizes = re.findall(r"[\d.]+ [GM]B", general[0]["what"])
    assert len(set(sizes)) == 2
    assert largest_need([{"needed_bytes": "5000000000.0"}, {"needed_bytes": "7"}]) == [
        {"needed_bytes": "5000000000.0"}
    ]
