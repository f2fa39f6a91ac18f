"""`ftcluster ps`: the runs that the cluster's head knows of."""

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_output, print_result
from ftcluster.cli.run_options import add_run_options, all_runs, cluster_place
from ftcluster.errors import UsageError
from ftcluster.launch.record import complete_from
from ftcluster.progress.format import duration
from ftcluster.text.host_names import short_names
from ftcluster.text.table import aligned
from ftcluster_common.run_state import RunState

COLUMNS = ("run", "state", "step", "hosts", "started", "time", "by")


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "ps",
        help="list the runs",
        description="Lists the runs on the cluster, the newest first, whoever started them.",
        usage="ftcluster ps [options]",
    )
    add_run_options(parser, "", argparse.SUPPRESS)
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.words:
        raise UsageError(f"ps takes no {options.words[0]}", "one run: ftcluster attach RUN")
    with ask_passwords(vars(options)) as passwords:
        runs = all_runs(cluster_place(options, passwords))
    for one in runs:
        complete_from(one)
    text = "\n".join(table(runs)) if runs else "no runs"
    print_result(options, [one.to_dict() for one in runs], text)
    return 0


def table(runs: Sequence[RunState]) -> list[str]:
    """A line a run, below a line of headings."""
    return aligned([COLUMNS, *map(_row, runs)])


def _row(one: RunState) -> tuple[str, ...]:
    started = datetime.fromtimestamp(one.started).astimezone()
    prepares = one.state == "running" and not one.ranks  # downloads and tokenizes
    return (
        one.run,
        "preparing" if prepares else one.state,
        f"{one.step}/{one.steps}" if one.steps else "-",
        short_names(one.hosts) or "-",
        f"{started:%Y-%m-%d %H:%M}",
        duration(one.seconds),
        one.started_by or "-",
    )
