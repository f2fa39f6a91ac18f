"""Options of ansible-playbook, which the command line passes on unchanged."""

import argparse
from collections.abc import Sequence
from typing import Any

from ftcluster.cli.arguments import not_empty
from ftcluster.cli.parser import ListOnce
from ftcluster.errors import UsageError
from ftcluster.operations.connection import SETUP

GROUP = "passed on to ansible-playbook"
# value and meaning of each option, for --help and docs/cli.md
WITH_VALUE = {
    "--limit": ("HOSTS", "only these hosts of the inventory, as names, groups or patterns"),
    "--tags": ("STAGES", "only these stages, such as preflight or preflight,system"),
    "--skip-tags": ("STAGES", "all stages except these"),
    "--extra-vars": (
        "VARIABLES",
        "variables that override the inventory's: key=value, JSON, or @FILE with YAML",
    ),
    "--forks": ("N", "number of hosts that Ansible works on at the same time"),
    "--user": ("NAME", "user that logs in to the hosts"),
    "--private-key": ("FILE", "private SSH key for logging in to the hosts"),
    "--become-password-file": ("FILE", "file with the sudo password"),
    "--connection-password-file": ("FILE", "file with the SSH password"),
    "--vault-password-file": (
        "FILE",
        "file with the inventory's Ansible Vault password, or a program that prints the password",
    ),
    "--vault-id": ("ID@FILE", "ID of a vault and the file with its password; may be repeated"),
}
# options that ansible-playbook accepts several times; if any other option is repeated, it silently
# uses the last value
REPEATED = ("--tags", "--skip-tags", "--extra-vars", "--vault-password-file", "--vault-id")
FLAGS = {
    "--check": "change nothing, and report what would change",
    "--diff": "show added and removed lines of files",
}
SHORT = {"--limit": "-l", "--tags": "-t", "--extra-vars": "-e", "--user": "-u"}
# short form, prompt, option for a file with the password, and meaning of each option
ASKED = {
    "--ask-become-pass": (
        "-K", "BECOME password", "--become-password-file", "prompt for the sudo password"
    ),
    "--ask-pass": (
        "-k", "SSH password", "--connection-password-file", "prompt for the SSH password"
    ),
    "--ask-vault-pass": (
        "-J", "Vault password", "--vault-password-file", "prompt for the vault password"
    ),
}  # fmt: skip


def add_options(
    parser: argparse.ArgumentParser, with_value: tuple[str, ...], flags: tuple[str, ...] = ()
) -> None:
    """Add options of ansible-playbook to a command.

    Args:
        with_value: options with a value; the options in REPEATED may be repeated.
        flags: options without a value.
    """
    group = parser.add_argument_group(GROUP)
    for name in with_value:
        names = [SHORT[name], name] if name in SHORT else [name]
        metavar, meaning = WITH_VALUE[name]
        # an empty --limit, such as an unset variable of the shell, would mean all hosts
        kind = str if name == "--extra-vars" else not_empty
        action: Any = "append" if name in REPEATED else ListOnce
        group.add_argument(
            *names, type=kind, action=action, default=[], metavar=metavar, dest=name, help=meaning
        )
    for name in flags:
        group.add_argument(name, action="store_true", dest=name, help=FLAGS[name])
    for name, (short, _, _, meaning) in ASKED.items():
        group.add_argument(short, name, action="store_true", dest=name, help=meaning)


def extra_variables(words: Sequence[str]) -> tuple[str, ...]:
    """Return the values of --extra-vars, which argparse also reads from -e, -Ke or --extra.

    Raises:
        argparse.ArgumentError: an option has no value.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    add_options(parser, SETUP)
    add_inventory_option(parser, "")
    parser.add_argument("-v", "--verbose", action="store_true")
    parsed, _ = parser.parse_known_args(list(words))
    return tuple(vars(parsed)["--extra-vars"])


def add_inventories(parser: argparse.ArgumentParser, words: str) -> None:
    """Add the inventories to a command: as arguments, and with Ansible's option -i."""
    parser.add_argument("words", nargs="*", type=not_empty, metavar="INVENTORY", help=words)
    add_inventory_option(parser, "an inventory; several inventories are merged in this order")


def add_inventory_option(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add Ansible's option -i for an inventory to a command."""
    names = ("-i", "--inventory")
    parser.add_argument(
        *names,
        type=not_empty,
        action="append",
        default=[],
        metavar="INVENTORY",
        dest="inventories",
        help=meaning,
    )


def inventories_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the inventories in the order in which the user named them.

    Raises:
        UsageError: the user named several inventories, but not each one with -i.
    """
    names = (*options.words, *options.inventories)
    if len(names) > 1 and options.words:
        several = " ".join(f"-i {name}" for name in names)
        raise UsageError(f"to name several inventories, put -i before each of them: {several}")
    return names


def passed_on(options: dict[str, Any], flags: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the options that are passed on to ansible-playbook, as a list of arguments."""
    arguments: list[str] = []
    for name in SETUP:
        for value in options.get(name, []):
            arguments += [name, value]
    arguments += [name for name in flags if options.get(name)]
    return tuple(arguments)
