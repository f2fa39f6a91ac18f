"""`ftcluster report [RUN ...]`: one HTML page about runs."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftcluster.ansible.options import ask_passwords
from ftcluster.cli.arguments import add_output, print_result
from ftcluster.cli.run_options import add_run_options, find
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.paths import write_atomically
from ftcluster.report.files import RunFiles, ended_here, from_head
from ftcluster_common.given_files import read_json

SEVERAL = "ftcluster-report.html"


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="write an HTML page with pictures about runs",
        description="Writes one HTML page about a run, or about several side by side: what ran "
        "where, how it went, why it was this fast, which host costs most, and what the next host "
        "would bring. The page needs no other file and no network.",
        usage="ftcluster report [RUN ...] [-o FILE] [--scaling FILE] [options]",
    )
    add_run_options(parser, "RUN", "ids, or how they begin; left out, the newest run")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help=f"where the page is written (default: RUN.html; of several runs {SEVERAL})",
    )  # fmt: skip
    parser.add_argument(
        "--scaling",
        type=Path,
        metavar="FILE",
        help="also show this output of `ftcluster bench scaling --json`",
    )
    add_output(parser, verbose="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    bench = read_scaling(options.scaling) if options.scaling else None
    with ask_passwords(vars(options)) as passwords:
        words = list(dict.fromkeys(options.words))
        files = [files_of(options, passwords, name) for name in words or [""]]
    from jinja2 import TemplateError  # both take a second to load

    from ftcluster.report.page import render

    output = options.output or Path(SEVERAL if len(files) > 1 else f"{files[0].run}.html")
    try:
        page = render(files, datetime.now(UTC), bench)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        TemplateError,
    ) as error:
        where = ", ".join(f"{one.run} ({one.source or 'this control node'})" for one in files)
        raise FtclusterError(
            f"records are not as ftcluster writes them: {where}: {ascii(repr(error))[:200]}",
            "make a report of each run alone to see which one it is",
        ) from error
    write_atomically(output.absolute(), page, mode=0o644)
    document = {
        "state": "done",
        "runs": [one.run for one in files],
        "report": str(output.absolute()),
    }
    print_result(options, document, f"report: {output}")
    return 0


def files_of(options: argparse.Namespace, passwords: Sequence[str], given: str) -> RunFiles:
    """A run's record and events, from here if it has ended, else from its head."""
    place, name = find(options, passwords, given)
    return ended_here(name) or from_head(place, name)


def read_scaling(path: Path) -> dict[str, Any]:
    """The document of `bench scaling --json`.

    Raises:
        UsageError: it is another file.
    """
    try:
        found: dict[str, Any] = read_json(path)
        known = bool(found["points"][0]["samples_per_second"] and found["recipe"])
    except (ValueError, KeyError, IndexError, TypeError):
        known = False
    if not known:
        raise UsageError(f"{path} is no output of ftcluster bench scaling --json")
    return found
