"""Deliver a notification: start the user's command, or post to a webhook.

The supervisor of a run and the control node both use this module. Standard library only.
"""

import ctypes
import http.client
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

LIMIT_SECONDS = 30.0  # time limit of the command, and of the webhook
SHOWN_CHARACTERS = 200  # maximum length of the command's last line on stderr in a message
COMMAND, WEBHOOK = "command", "webhook"
# environment variables that the command inherits, besides PATH; none contains credentials
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER")
PR_SET_PDEATHSIG = 1  # Linux, include/uapi/linux/prctl.h


@dataclass(frozen=True)
class Delivery:
    """A notification and its recipients.

    Attributes:
        command: arguments of the user's command; empty if there is no command.
        webhook: URL to which the document is posted; "" if there is no webhook.
        document: JSON object that command and webhook receive; `text` in it is a line for people.
    """

    command: Sequence[str]
    webhook: str
    document: Mapping[str, Any]

    def packed(self) -> bytes:
        """Return the delivery as JSON, the form that `Delivery(**json.load(...))` reads."""
        return json.dumps(asdict(self)).encode()


def deliver(delivery: Delivery) -> Iterator[tuple[str, str]]:
    """Deliver a notification.

    Yields:
        COMMAND and WEBHOOK, if set, each with the reason why the delivery failed, or "".
    """
    if delivery.command:
        yield COMMAND, run_command(delivery.command, delivery.document)
    if delivery.webhook:
        yield WEBHOOK, post(delivery.webhook, delivery.document)


def run_command(
    command: Sequence[str], document: Mapping[str, Any], limit_seconds: float = LIMIT_SECONDS
) -> str:
    """Run the user's command with the document on stdin; return the reason for a failure, or ""."""
    names, parent = [*INHERITED, "PATH"], os.getpid()
    prctl = ctypes.CDLL(None).prctl  # not in the child: another thread may hold a lock
    environment = {name: os.environ[name] for name in names if name in os.environ}
    # in memory, because the disk may be full
    with _memory_file("stdin") as stdin, _memory_file("stderr") as stderr:
        stdin.write(json.dumps(document).encode() + b"\n")
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                command, env=environment, cwd="/", stdin=stdin, stdout=subprocess.DEVNULL,
                stderr=stderr, start_new_session=True,
                preexec_fn=lambda: _end_with_parent(prctl, parent),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return f"it cannot be started: {getattr(error, 'strerror', None) or error}"
        try:
            code = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"it did not end within {limit_seconds:g} s"
        if code == 0:
            return ""
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 4096))
        lines = stderr.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
    shown = "".join(letter if letter.isprintable() else " " for letter in last).strip()
    how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    return f"{how}: {shown[:SHOWN_CHARACTERS]}" if shown else how


def _end_with_parent(prctl: Callable[[int, int], int], parent: int) -> None:
    """Make the kernel kill this new child process when the process `parent` ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def _memory_file(name: str) -> IO[bytes]:
    return os.fdopen(os.memfd_create(name), "r+b")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because urllib would not send the document to the new address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(url: str, document: Mapping[str, Any], limit_seconds: float = LIMIT_SECONDS) -> str:
    """Post the document to a webhook; return the reason for a failure, without the URL, or ""."""
    # chat servers read &, < and > in `text` as markup
    text = str(document["text"])
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(mark, entity)
    body = json.dumps({**document, "text": text}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "ftcluster"}
    try:
        request = urllib.request.Request(url, body, headers, method="POST")
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(request, timeout=limit_seconds):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"the server responded with HTTP status {error.code}"
    except urllib.error.URLError as error:
        reason = error.reason
        cause = reason.strerror if isinstance(reason, OSError) else ""
        return f"the server cannot be reached: {cause or type(reason).__name__}"
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
    ) as error:  # messages may contain the URL
        return f"the server did not respond: {type(error).__name__}"
