"""Deliver a notification about a run: start the user's command, or post to a webhook.

    python -m ftcluster_train.supervisor.notification RUN_DIR EVENT

The supervisor starts this program, so that a slow command or server cannot delay the run. stdin has
a `Delivery` as JSON. The program records each result as an event of the run. It prints nothing,
because the address of a webhook may be a secret. Standard library only.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ftcluster_common.protocol.run_state import RunState
from ftcluster_train.io.events import EventWriter
from ftcluster_train.io.processes import end_with_parent, signal_group
from ftcluster_train.supervisor.heartbeats import STOPS

LIMIT_SECONDS = 30.0  # for the command, and again for the webhook
SHOWN_CHARACTERS = 200  # of the command's last line on stderr
COMMAND, WEBHOOK = "command", "webhook"
# variables of this host that the command gets, besides PATH: no credentials
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER")


@dataclass(frozen=True)
class Delivery:
    """A notification and its recipients.

    Attributes:
        command: arguments of the user's command; empty for none.
        webhook: address that gets the document; "" for none.
        document: the run's state, see `document_of`.
    """

    command: Sequence[str]
    webhook: str
    document: Mapping[str, Any]

    def packed(self) -> bytes:
        """Return the delivery as JSON, which `main` reads."""
        return json.dumps(asdict(self)).encode()


def document_of(
    event: str, run: RunState, head: str, metrics: Mapping[str, Any], **changes: Any
) -> dict[str, Any]:
    """Return the document about a run: the fields of `ftcluster ps --json`, and a line of text.

    Args:
        event: done, failed, stopped or waiting.
        head: name of the run's head.
        metrics: final metrics of a training.
        changes: fields that are newer than in `run`.
    """
    row = {**run.to_dict(), **changes}
    document = {"event": event, **row, "head": head, "metrics": dict(metrics)}
    text = "".join(letter if letter.isprintable() else " " for letter in text_of(document))
    return {**document, "text": text}


def text_of(document: Mapping[str, Any]) -> str:
    """Return a line about a run for people.

    >>> text_of({"run": "a-1", "event": "done", "seconds": 3725, "metrics": {"accuracy": 0.91234}})
    'a-1 is done after 1:02:05: accuracy 0.9123'
    >>> text_of({"run": "a-1", "event": "waiting", "seconds": 2, "doing": "waiting for node2"})
    'a-1 is waiting for node2'
    """
    if document["event"] == "waiting":
        return f"{document['run']} is {document['doing']}"
    minutes, seconds = divmod(round(document["seconds"]), 60)
    after = f"after {minutes // 60}:{minutes % 60:02}:{seconds:02}"
    metrics = document.get("metrics", {}).items()
    details = document.get("why") or ", ".join(f"{name} {value:.4g}" for name, value in metrics)
    return f"{document['run']} {_VERBS[document['event']]} {after}" + (
        f": {details}" if details else ""
    )


_VERBS = {"done": "is done", "failed": "failed", "stopped": "was stopped"}


def deliver(delivery: Delivery) -> Iterator[tuple[str, str]]:
    """Deliver a notification.

    Yields:
        COMMAND and WEBHOOK if they are set, each with the reason for its failure, or "".
    """
    if delivery.command:
        yield COMMAND, run_command(delivery.command, delivery.document)
    if delivery.webhook:
        yield WEBHOOK, post(delivery.webhook, delivery.document)


def run_command(
    command: Sequence[str], document: Mapping[str, Any], limit_seconds: float = LIMIT_SECONDS
) -> str:
    """Run the user's command with the document on stdin; return why it failed, or ""."""
    names, parent = [*INHERITED, "PATH"], os.getpid()
    environment = {name: os.environ[name] for name in names if name in os.environ}
    # in memory, because the disk may be full
    with _memory_file("stdin") as stdin, _memory_file("stderr") as stderr:
        stdin.write(json.dumps(document).encode() + b"\n")
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                command, env=environment, cwd="/", stdin=stdin, stdout=subprocess.DEVNULL,
                stderr=stderr, start_new_session=True,
                preexec_fn=lambda: end_with_parent(signal.SIGKILL, parent),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return f"it does not start: {getattr(error, 'strerror', None) or error}"
        try:
            code = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            signal_group(process, signal.SIGKILL)
            process.wait()
            return f"it has not ended within {limit_seconds:g} s"
        if code == 0:
            return ""
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 4096))
        lines = stderr.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
    shown = "".join(letter if letter.isprintable() else " " for letter in last).strip()
    how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    return f"{how}: {shown[:SHOWN_CHARACTERS]}" if shown else how


def _memory_file(name: str) -> IO[bytes]:
    return os.fdopen(os.memfd_create(name), "r+b")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because that would repeat the request elsewhere without the document."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(url: str, document: Mapping[str, Any], limit_seconds: float = LIMIT_SECONDS) -> str:
    """Post the document to a webhook; return why that failed, without the address, or ""."""
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
        return f"the server's status is {error.code}"
    except urllib.error.URLError as error:
        reason = error.reason
        cause = reason.strerror if isinstance(reason, OSError) else ""
        return f"the server cannot be reached: {cause or type(reason).__name__}"
    # the exception's message may contain the URL
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"the server does not answer: {type(error).__name__}"


def main() -> int:
    """Deliver the notification on stdin, and record the results. Returns the exit code."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # the supervisor has blocked them
    run_dir, event = Path(sys.argv[1]), sys.argv[2]
    delivery = Delivery(**json.load(sys.stdin))
    events = EventWriter(run_dir)
    for by, problem in deliver(delivery):
        if problem:
            events.write("notice", message=failure_notice(event, by, problem))
        else:
            events.write("notified", about=event, by=by)
    return 0


def failure_notice(event: str, by: str, problem: str) -> str:
    """Return the notice about a notification that failed."""
    option = {COMMAND: "--notify", WEBHOOK: "--webhook"}[by]
    return f"{option}: the notification that the run is {event} has failed: {problem}"


if __name__ == "__main__":
    sys.exit(main())
