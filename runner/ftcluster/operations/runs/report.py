"""Write an HTML page about runs."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.operations.connection import Connection, find
from ftcluster.operations.result import Result
from ftcluster.paths import write_atomically
from ftcluster.progress.view import View
from ftcluster.report.files import RunFiles, ended_here, from_head
from ftcluster_common.given_files import read_json

SEVERAL = "ftcluster-report.html"


@dataclass(frozen=True)
class ReportRequest:
    """A request for a page about runs.

    Attributes:
        runs: ids of the runs, or the beginnings of their ids; if empty, the newest run.
        output: path of the page; None for a name made of the run's id.
        scaling: path of a file with the output of `bench scaling --json` to include; None for none.
    """

    connection: Connection = field(default_factory=Connection)
    runs: tuple[str, ...] = ()
    output: Path | None = None
    scaling: Path | None = None


def report(request: ReportRequest, view: View) -> Result:
    """Write the HTML page about the requested runs.

    Raises:
        UsageError: the file `scaling` is not output of `bench scaling --json`.
        FtclusterError: there is no such run, its head does not respond, or a record is damaged.
    """
    bench = read_scaling(request.scaling) if request.scaling else None
    names: Sequence[str] = list(dict.fromkeys(request.runs)) or [""]
    with ThreadPoolExecutor(1) as pool:
        # the plotting library takes a second to load, so it loads while heads respond
        pool.submit(_load_charts)
        files = [_files_of(request.connection, name, view) for name in names]
    from jinja2 import TemplateError

    from ftcluster.report.page import render

    output = request.output or Path(SEVERAL if len(files) > 1 else f"{files[0].run}.html")
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
        where = ", ".join(f"{file.run} ({file.source or 'this control node'})" for file in files)
        raise FtclusterError(
            f"records have an unexpected format: {where}: {ascii(repr(error))[:200]}",
            "to find the damaged record, write a separate report about each run",
        ) from error
    write_atomically(output.absolute(), page)
    document = {
        "state": "done",
        "runs": [file.run for file in files],
        "report": str(output.absolute()),
    }
    return Result(document, (f"report: {output}",))


def _load_charts() -> None:
    from ftcluster.report import charts

    charts.svg_of(charts.curve([{"x": 1, "y": 1, "run": ""}], "x", "y", "", ""), "")


def _files_of(connection: Connection, run: str, view: View) -> RunFiles:
    """Return a run's record and events: local files if the run has ended, or the head's files."""
    run_hosts, name = find(connection, run, view)
    return ended_here(name) or from_head(run_hosts, name)


def read_scaling(path: Path) -> dict[str, Any]:
    """Return the document of `bench scaling --json` that a file contains.

    Raises:
        UsageError: the file is not output of `bench scaling --json`.
    """
    try:
        document: dict[str, Any] = read_json(path)
        is_scaling = bool(document["points"][0]["samples_per_second"] and document["recipe"])
    except (ValueError, KeyError, IndexError, TypeError):
        is_scaling = False
    if not is_scaling:
        raise UsageError(f"{path} is not the output of ftcluster bench scaling --json")
    return document
