"""Asks which hosts of an inventory are the cluster, where the inventory has others as well."""

from collections.abc import Callable

from ftcluster.ansible.inventory import HOSTS_VARIABLE, OWN_GROUP, Inventory
from ftcluster.errors import UsageError
from ftcluster.text.host_names import short_names

MOST_SHOWN = 20  # groups; plugins of clouds make one of each tag


def which_hosts(inventory: Inventory, ask: Callable[[str], str]) -> str:
    """The pattern of the cluster's hosts, as the user answers; "" where it is all of them anyway.

    Args:
        ask: shows a question and returns the answer, or "".

    Raises:
        UsageError: there is no answer; lists the groups and what to write.
    """
    if not inventory.groups:
        return ""
    shown = list(inventory.groups.items())[:MOST_SHOWN]
    lines = [f"{name}: {short_names(hosts)}" for name, hosts in shown]
    if len(inventory.groups) > len(shown):
        lines.append("...")
    question = f"which hosts of {inventory.name} are the cluster? Its groups:\n  " + "\n  ".join(
        lines
    )
    answer = ask(f"{question}\na group, another pattern of hosts, or all: ")
    if not answer:
        raise UsageError(
            question,
            f"name them: -e {HOSTS_VARIABLE}=GROUP, or all of them: -e {HOSTS_VARIABLE}=all; it is "
            f"remembered. Or have a group {OWN_GROUP} in the inventory",
        )
    return answer
