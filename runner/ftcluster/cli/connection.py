"""The connection to a cluster: passwords, and options passed on to ansible-playbook."""

import argparse
import contextlib
import getpass
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ftcluster.cli.ansible_options import (
    ASKED,
    add_inventory_option,
    add_options,
    extra_variables,
    passed_on,
)
from ftcluster.cli.arguments import not_empty
from ftcluster.errors import UsageError
from ftcluster.operations.connection import CONNECTION, Connection

HIDDEN = "..."


@contextlib.contextmanager
def ask_passwords(options: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Ask for the passwords that the options request; yield arguments of ansible-playbook.

    Each password is in an anonymous file in memory until the context ends. The argument with the
    password is the path of this process's descriptor for that file; see `answer_in_memory`.
    """
    wanted = [entry for name, entry in ASKED.items() if options.get(name)]
    if not wanted:
        yield ()
        return
    with contextlib.ExitStack() as stack:
        arguments: list[str] = []
        for _, what, option, _ in wanted:
            answer = getpass.getpass(f"{what}: ")
            descriptor = os.memfd_create("ftcluster")
            stack.callback(os.close, descriptor)
            os.fchmod(descriptor, 0o600)  # Ansible would execute a file with an executable mode
            os.write(descriptor, f"{answer}\n".encode())
            arguments += [option, f"/proc/{os.getpid()}/fd/{descriptor}"]
        yield tuple(arguments)


def shown_command(words: Sequence[str]) -> list[str]:
    """Return a command line without the values of extra variables, which may be secrets.

    >>> shown_command(["train", "mrpc", "-Ke", "ansible_password=x", "--extra-v=y"])
    ['ftcluster', 'train', 'mrpc', '-Ke', '...', '--extra-v=...']
    """
    end = list(words).index("--") if "--" in words else len(words)
    try:
        hidden = extra_variables(words[:end])
    except argparse.ArgumentError:  # the command itself reports this error
        hidden = tuple(words[:end])
    return ["ftcluster", *(_without(word, hidden) for word in words[:end]), *words[end:]]


def _without(word: str, hidden: Sequence[str]) -> str:
    """Replace hidden values in an argument: the whole argument, or the part after its option."""
    if word in hidden:
        return HIDDEN
    behind = [value for value in hidden if value and word[:1] == "-" and word.endswith(value)]
    return word[: -max(map(len, behind))] + HIDDEN if behind else word


def command_line() -> tuple[str, ...]:
    """Return this command line for the record of a launch."""
    return tuple(shown_command(sys.argv[1:]))


@contextlib.contextmanager
def connected(
    options: argparse.Namespace, inventories: Sequence[str] = (), flags: tuple[str, ...] = ()
) -> Iterator[Connection]:
    """Ask for passwords if requested, and yield the connection to the cluster.

    Args:
        inventories: paths of inventories; by default the values of -i.
        flags: options of ansible-playbook without a value.
    """
    names = tuple(inventories or getattr(options, "inventories", ()))
    with ask_passwords(vars(options)) as passwords:
        yield Connection(names, passed_on(vars(options), flags), passwords)


def add_run_options(parser: argparse.ArgumentParser, words: str, meaning: str) -> None:
    """Add a run's id and the options for reaching its cluster.

    Args:
        words: name of the argument in the usage, such as RUN.
        meaning: help text of the argument.
    """
    parser.add_argument("words", nargs="*", type=not_empty, metavar=words, help=meaning)
    add_cluster(parser)
    add_options(parser, ("--extra-vars", *CONNECTION))


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a cluster."""
    add_inventory_option(
        parser,
        "inventory of a cluster that was set up from another control node (default: the cluster "
        "that was set up last from here)",
    )


def one_name(words: Sequence[str]) -> str:
    """Return the name of the run in the arguments, or "" if there is no argument.

    Raises:
        UsageError: there are several arguments.
    """
    if len(words) > 1:
        raise UsageError(f"name one run at a time, got {', '.join(words)}")
    return words[0] if words else ""
