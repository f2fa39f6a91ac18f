"""Questions of setup and check to the user: the cluster's hosts, and unknown host keys."""

from collections.abc import Callable, Sequence

from ftcluster.ansible.host_keys import Keys, ask_hosts, refusal, store
from ftcluster.ansible.inventory import HOSTS_VARIABLE, OWN_GROUP, Inventory
from ftcluster.ansible.settings import keys_unchecked_by
from ftcluster.errors import UsageError
from ftcluster.progress.view import View
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted

YES = ("y", "yes")
MOST_SHOWN = 20  # maximum number of groups; cloud plugins create a group for each tag


def which_hosts(inventory: Inventory, ask: Callable[[str], str]) -> str:
    """Ask for the pattern of the cluster's hosts; return "" if all hosts are the cluster.

    Args:
        ask: function that shows a question and returns the answer, or "".

    Raises:
        UsageError: there is no answer; the message lists the groups of the inventory.
    """
    if not inventory.groups:
        return ""
    shown = list(inventory.groups.items())[:MOST_SHOWN]
    lines = [f"{name}: {short_names(hosts)}" for name, hosts in shown]
    if len(inventory.groups) > len(shown):
        lines.append("...")
    question = (
        f"which hosts of {inventory.name} belong to the cluster? The inventory's groups:\n  "
        + "\n  ".join(lines)
    )
    answer = ask(f"{question}\na group, another pattern of hosts, or all: ")
    if not answer:
        raise UsageError(
            question,
            f"select hosts with -e {HOSTS_VARIABLE}=GROUP, or all hosts with -e "
            f"{HOSTS_VARIABLE}=all; setup saves the choice. Or add a group {OWN_GROUP} to the "
            "inventory",
        )
    return answer


def say_unchecked(inventory: Inventory, view: View) -> None:
    """Print the user's setting that disables host key checking, if any."""
    ours = keys_unchecked_by()
    of_hosts = [f"{setting} in {inventory.name}" for setting in inventory.unchecked]
    for why in [*([ours] if ours else []), *of_hosts]:
        view.say(
            f"note: host keys are not checked, because of {why}. Anybody on the network path can "
            "become root on the hosts"
        )


def meet(
    what: str,
    inventory: Inventory,
    hosts: Sequence[str],
    options: Sequence[str],
    view: View,
    accept_new: bool,
) -> bool:
    """Store the keys of hosts without a stored key, if the user agrees.

    Args:
        what: name of the ftcluster command, for messages.
        hosts: hosts whose keys ssh refused.
        options: arguments of ansible-playbook.
        accept_new: True if the user has already agreed; otherwise a terminal asks.

    Returns:
        True if the caller should try again; False if ssh now refuses no key.

    Raises:
        FtclusterError: the user does not agree, or a key differs from the stored key.
    """
    keys = ask_hosts(inventory, hosts, options)
    if not keys.unknown and not keys.refused:
        return False
    if keys.refused or not (accept_new or _confirmed(keys, view)):
        raise refusal(what, keys)
    store(keys.unknown)
    for met in keys.unknown:
        view.say(f"note: stored in {met.file}: {met.line}")
    return True


def _confirmed(keys: Keys, view: View) -> bool:
    """Ask whether to trust the keys. Return False if the user does not answer."""
    files = ", ".join(sorted({str(met.file) for met in keys.unknown}))
    lines = [
        f"ssh has no stored key for {counted(len(keys.unknown), 'host')}:",
        *(f"  {met.line}" for met in keys.unknown),
        f"Trust these keys? yes stores them in {files} [y/N]: ",
    ]
    return view.ask("\n".join(lines)).lower() in YES
