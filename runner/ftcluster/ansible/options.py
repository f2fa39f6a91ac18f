"""Options of ansible-playbook, which the command line passes on unchanged."""

import argparse
import contextlib
import getpass
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ftcluster.errors import UsageError

SHORT = {"--limit": "-l", "--tags": "-t", "--extra-vars": "-e", "--user": "-u"}
# how to reach the hosts: names and paths, no secrets, so they are saved with the cluster
CONNECTION = (
    "--user", "--private-key", "--become-password-file", "--connection-password-file",
    "--vault-password-file", "--vault-id",
)  # fmt: skip
MOST_BYTES = 1 << 16  # of an answer
SETUP = ("--limit", "--tags", "--skip-tags", "--extra-vars", "--forks", *CONNECTION)
# option: its short form, what is asked for, and the option for a file with the answer
ASKED = {
    "--ask-become-pass": ("-K", "BECOME password", "--become-password-file"),
    "--ask-pass": ("-k", "SSH password", "--connection-password-file"),
    "--ask-vault-pass": ("-J", "Vault password", "--vault-password-file"),
}


def add_options(
    parser: argparse.ArgumentParser, with_value: tuple[str, ...], flags: tuple[str, ...] = ()
) -> None:
    """Add options of ansible-playbook to a verb.

    Args:
        with_value: those that take a value; may be given several times.
    """
    group = parser.add_argument_group("passed on to ansible-playbook")
    for name in with_value:
        names = [SHORT[name], name] if name in SHORT else [name]
        group.add_argument(*names, action="append", default=[], metavar="X", dest=name)
    for name in flags:
        group.add_argument(name, action="store_true", dest=name)
    for name, (short, what, _) in ASKED.items():
        group.add_argument(
            short, name, action="store_true", dest=name, help=f"ask for the {what} here"
        )


def extra_variables(words: Sequence[str]) -> tuple[str, ...]:
    """The values of --extra-vars among words, as argparse reads them: -e, -Ke, --extra.

    Raises:
        argparse.ArgumentError: one has no value.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    add_options(parser, SETUP)
    add_inventory_option(parser, "")
    parser.add_argument("-v", "--verbose", action="store_true")
    found, _ = parser.parse_known_args(list(words))
    return tuple(vars(found)["--extra-vars"])


def add_inventories(parser: argparse.ArgumentParser, words: str) -> None:
    """Add the inventories to a verb: as an argument, or with Ansible's option."""
    parser.add_argument("words", nargs="*", metavar="INVENTORY", help=words)
    add_inventory_option(parser, "an inventory; several are read together, in this order")


def add_inventory_option(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add Ansible's option for an inventory to a verb."""
    names = ("-i", "--inventory")
    parser.add_argument(
        *names, action="append", default=[], metavar="INVENTORY", dest="inventories", help=meaning
    )


def inventories_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The inventories that the user names, in their order.

    Raises:
        UsageError: there are several arguments, or both arguments and options.
    """
    given = (*options.words, *options.inventories)
    if len(given) > 1 and options.words:
        several = " ".join(f"-i {name}" for name in given)
        raise UsageError(f"one inventory, or several with an option each: {several}")
    return given


def passed_on(options: dict[str, Any], flags: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The arguments of ansible-playbook among the options, as the user gave them."""
    found: list[str] = []
    for name in SETUP:
        for value in options.get(name, []):
            found += [name, value]
    found += [name for name in flags if options.get(name)]
    return tuple(found)


def remembered(options: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `passed_on` that say how to reach the hosts, with paths made absolute."""
    found: dict[str, str] = {}  # the last of each counts
    for name, value in pairwise(options):
        if name in CONNECTION:
            is_file = name != "--user" and Path(value).exists()
            found[name] = str(Path(value).absolute()) if is_file else value
    return tuple(word for pair in found.items() for word in pair)


@contextlib.contextmanager
def ask_passwords(options: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Ask for the passwords that the options want; yields arguments of ansible-playbook.

    The answers are in memory without a name until the context ends. An argument is a path of this
    process's descriptor; see `answer_in_memory`.
    """
    wanted = [entry for name, entry in ASKED.items() if options.get(name)]
    if not wanted:
        yield ()
        return
    with contextlib.ExitStack() as stack:
        found: list[str] = []
        for _, what, option in wanted:
            answer = getpass.getpass(f"{what}: ")
            descriptor = os.memfd_create("ftcluster")
            stack.callback(os.close, descriptor)
            os.fchmod(descriptor, 0o600)  # Ansible executes what has the mode of a program
            os.write(descriptor, f"{answer}\n".encode())
            found += [option, f"/proc/{os.getpid()}/fd/{descriptor}"]
        yield tuple(found)


def answer_in_memory(word: str) -> bytes | None:
    """The answer that an argument of `ask_passwords` stands for; None for other arguments.

    Ansible resolves links in paths of become and SSH passwords, which one of a descriptor does not
    survive.
    """
    before, _, descriptor = word.rpartition("/fd/")
    if before != f"/proc/{os.getpid()}" or not descriptor.isdigit():
        return None
    return os.pread(int(descriptor), MOST_BYTES, 0)
