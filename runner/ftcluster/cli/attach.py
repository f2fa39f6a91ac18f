"""`ftcluster attach [RUN]`: follows a run that was launched before."""

import argparse
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_output, print_result
from ftcluster.cli.run_options import add_run_options, find, one_name
from ftcluster.cluster.price import price_document
from ftcluster.errors import FtclusterError
from ftcluster.launch.follow import attach
from ftcluster.launch.place import head_lost_hint
from ftcluster.launch.record import read_record
from ftcluster.launch.run import Followed, raise_if_stopped
from ftcluster.progress.format import duration, metrics
from ftcluster.progress.view import make_view
from ftcluster.report.cost import cost_line, recorded_price


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "attach",
        help="follow a run to its end",
        description="Follows a run to its end, also one that was started from another control "
        "node. Ctrl-C ends only this command: the run goes on.",
        usage="ftcluster attach [RUN] [options]",
    )
    add_run_options(parser, "RUN", "its id, or how that begins; left out, the newest run")
    add_output(parser, verbose="print plain lines instead of the live view")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    given = one_name(options.words)

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "output" and not options.json:
            print(event["text"], end="", flush=True)

    with ask_passwords(vars(options)) as passwords:
        place, name = find(options, passwords, given)
        followed = attach(place, name, make_view(options.verbose), on_event)
    record = read_record(followed.progress.run) or {}
    price = recorded_price(record) if followed.progress.result else None
    document = {
        **followed.progress.document(),
        "price": price_document(price),
        "cost": round(price.cost(followed.progress.seconds), 6) if price else None,
    }
    raise_if_stopped(followed, document)
    if not followed.progress.ended or followed.progress.state != "done":
        hint = head_lost_hint(name) if followed.outcome.unreachable else ""
        raise FtclusterError(reason(followed), hint, details=document)
    cost: tuple[str, ...] = ()
    if price:
        hosts = len(record["facts"])
        epoch = followed.progress.epoch_seconds
        cost = (cost_line(followed.progress.seconds, epoch, price, hosts),)
    print_result(options, document, "\n".join([summary(document), *cost]))
    return 0


def reason(followed: Followed) -> str:
    """Why a run did not end well."""
    run, state = followed.progress.run, followed.progress.state
    if state == "running":
        state = "failed"
    words = [error["message"] for error in followed.progress.errors]
    words = words or [event.message for event in followed.outcome.failures]
    return "\n  ".join([f"run {run} {state}", *words])


def summary(document: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [f"{document['run']}: {document['state']}, {duration(document['seconds'])}"]
    if document["model"]:
        lines += [metrics(document["metrics"]), f"model on the head: {document['model']}"]
    return "\n".join(lines)
