"""Hosts that are met for the first time, and what is said where keys are not checked."""

from collections.abc import Sequence

from ftcluster.ansible.host_keys import Keys, ask_hosts, refusal, store
from ftcluster.ansible.inventory import Inventory
from ftcluster.ansible.settings import keys_unchecked_by
from ftcluster.progress.view import View
from ftcluster.text.plural import counted

YES = ("y", "yes")


def say_unchecked(inventory: Inventory, view: View) -> None:
    """Say which of the user's settings lets anybody be a host."""
    ours = keys_unchecked_by()
    of_hosts = [f"{one} in {inventory.name}" for one in inventory.unchecked]
    for why in [*([ours] if ours else []), *of_hosts]:
        view.say(
            f"note: host keys are not checked: {why}. Whoever is in between can become root there"
        )


def meet(
    what: str,
    inventory: Inventory,
    hosts: Sequence[str],
    options: Sequence[str],
    view: View,
    accept_new: bool,
) -> bool:
    """Store the keys of hosts that ssh does not know, if the user wants that.

    Args:
        what: the command.
        hosts: those whose keys ssh refused.
        options: arguments of ansible-playbook.
        accept_new: whether the user has said so already; else a terminal asks.

    Returns:
        Whether it is worth trying again; False where ssh does not refuse any key by now.

    Raises:
        FtclusterError: the user does not want that, or a key is another one than the known one.
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
    """Ask whether these are the hosts; without an answer they are not."""
    files = ", ".join(sorted({str(met.file) for met in keys.unknown}))
    lines = [
        f"ssh does not know the keys of {counted(len(keys.unknown), 'host')}:",
        *(f"  {met.line}" for met in keys.unknown),
        f"Are these theirs? yes stores them in {files} [y/N]: ",
    ]
    return view.ask("\n".join(lines)).lower() in YES
