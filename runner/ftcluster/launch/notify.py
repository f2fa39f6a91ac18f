"""Read the recipients of notifications: `--notify COMMAND` and `--webhook FILE`.

The supervisor on the head sends the notifications of a run, so they do not need this control node.
The control node sends the notifications of a sweep. A webhook's address may be a secret. It is
therefore read from a file, and no record, command line or log contains it.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcluster.errors import UsageError
from ftcluster_common.delivery import COMMAND, Delivery, deliver
from ftcluster_common.given_files import GivenFileError, read_given

URL = re.compile(r"https?://[!-z|~]{1,2000}", re.ASCII)  # no blanks and no braces, as in templates
MOST_BYTES = 4096


@dataclass(frozen=True)
class Notify:
    """The recipients of the notifications about a run or a sweep.

    Attributes:
        command: arguments of the command to start; () for none.
        webhook: address to post to; "" for none.
    """

    command: tuple[str, ...] = ()
    webhook: str = field(default="", repr=False)


def read_notify(command: str, webhook: str) -> Notify:
    """Return the recipients that the two options name.

    Args:
        command: command line of `--notify`, without a shell's features; "" for none.
        webhook: path of the file of `--webhook`; "" for none.

    Raises:
        UsageError: the command cannot be split into arguments or contains an address, or the file
            contains no address.
    """
    return Notify(_read_command(command), _read_webhook(webhook) if webhook else "")


def notify_here(notify: Notify, document: Mapping[str, Any]) -> list[str]:
    """Deliver a notification from this machine, and return a message for each failure.

    Args:
        document: JSON object for the recipients; `text` is a line for people.
    """
    delivery = Delivery(notify.command, notify.webhook, document)
    return [
        f"{'--notify' if by == COMMAND else '--webhook'}: the notification failed: {problem}"
        for by, problem in deliver(delivery)
        if problem
    ]


def _read_command(command: str) -> tuple[str, ...]:
    try:
        arguments = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--notify: {str(error).lower()}", "close each quotation mark") from None
    if command and not (arguments and arguments[0]):
        raise UsageError("--notify names no command")
    if any("://" in argument for argument in arguments):
        raise UsageError(
            "--notify contains an address, which may be a secret, and other users can read command "
            "lines",
            "put the address into a file that only you can read: --webhook FILE; or name a script "
            "on the head that contains the address",
        )
    return arguments


def _read_webhook(path: str) -> str:
    try:
        url = read_given(Path(path).expanduser(), MOST_BYTES).strip()
    except GivenFileError as error:
        raise UsageError(f"--webhook: {error}") from None
    if not URL.fullmatch(url):
        raise UsageError(
            f"--webhook: {path} does not contain the address of a webhook",
            "the file must contain a single line: https://...",
        )
    return url
