"""Renders the page about runs: text, tables and pictures. Pure except for reading the template."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from ftcluster.progress.classes import (
    confused_lines,
    confusion_rows,
    head_of,
    notes_of,
    score_rows,
)
from ftcluster.progress.data import TARGET_MARKS, sample_lines, set_line
from ftcluster.progress.format import duration, metrics
from ftcluster.progress.texts import HEAD
from ftcluster.report.analysis import HostCost
from ftcluster.report.cost import recorded_price
from ftcluster.report.files import RunFiles
from ftcluster.report.pictures import course, growth, places, speed, tried
from ftcluster.report.run_page import RunPage, fields_of, labels
from ftcluster.search.repeats import SEEDS, spreads
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster.text.printable import printable
from ftcluster_common import __version__

TEMPLATE = "page.html.j2"
SHOWN = ("batch_size", "training.learning_rate", "training.seed")  # always shown


def render(files: Sequence[RunFiles], now: datetime, bench: Mapping[str, Any] | None = None) -> str:
    """Render the page as HTML.

    Args:
        files: files of each run, in the order of the page.
        now: time of the report.
        bench: document of `bench scaling --json`, or None.
    """
    runs = [RunPage(label, of_run) for label, of_run in zip(labels(files), files, strict=True)]
    text = resources.files("ftcluster.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    fields = [fields_of(run.record.get("recipe", {})) for run in runs]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(text).render(
        title=files[0].run if len(files) == 1 else ", ".join(run.label for run in runs),
        version=__version__,
        now=now.strftime("%Y-%m-%d %H:%M UTC"),
        runs=runs,
        summary=[(name, cells) for name, cells in summary(runs) if any(cells)],
        means=list(means(runs, fields)),
        places=list(places(runs)),
        course=[*tried(runs, fields, differing(fields, ())), *course(runs)],
        speed=list(speed(runs)),
        reasons=[(run.label, text) for run in runs if (text := reasons(run))],
        costs=list(costs(runs)),
        growth=list(growth(runs, bench)),
        outlook=[(run.label, run.next) for run in runs if run.next],
        data=[(run.label, run.history.data) for run in runs if run.history.data],
        classes=list(class_tables(runs)),
        texts=list(text_tables(runs)),
        text_head=HEAD,
        target_marks=TARGET_MARKS,
        set_line=set_line,
        sample_lines=sample_lines,
        percent=percent,
        json=json,
    )
    shown: str = printable(page)  # escapes bidi controls; the template escapes markup
    return shown


def means(
    runs: Sequence[RunPage], fields: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, int, list[tuple[str, str]]]]:
    """Yield each setting that several runs share; these runs differ only in seeds and folds.

    Yields:
        The setting, its number of runs, and the mean of each metric with its standard deviation.
    """
    tried = [name for name in differing(fields, ()) if name not in SEEDS]
    groups: dict[str, list[RunPage]] = {}
    for run, recipe in zip(runs, fields, strict=True):
        label = ", ".join(f"{name}={recipe.get(name)}" for name in tried)
        groups.setdefault(label, []).append(run)
    for label, repeats in groups.items():
        spread = spreads([run.last_metrics for run in repeats]) if len(repeats) > 1 else {}
        cells = [
            (name, f"{mean:.4g} ± {deviation:.2g}") for name, (mean, deviation) in spread.items()
        ]
        if cells:
            yield label or "all runs", len(repeats), cells


def class_tables(runs: Sequence[RunPage]) -> Iterator[tuple[str, list[Any], list[str]]]:
    """Yield the title, tables and notes of the class report for each data set of each run."""
    for run in runs:
        for name, report in run.classes.items():
            title = f"{run.label}: {name}" if len(runs) > 1 else name
            tables = [[head_of(report), *score_rows(report)], confusion_rows(report)]
            notes = [*confused_lines(report), *notes_of(report)]
            yield f"{title}, {report.rows} rows", [table for table in tables if table], notes


def text_tables(runs: Sequence[RunPage]) -> Iterator[tuple[str, Any]]:
    """Yield a title and the generated texts for each data set of each run that has texts."""
    for run in runs:
        for name, rows in run.texts.items():
            yield f"{run.label}: {name}" if len(runs) > 1 else name, rows


def percent(share: float) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.1234), percent(0.0834), percent(0.004), percent(0)
    ('12 %', '8.3 %', '0.4 %', '0 %')
    """
    return f"{100 * share:.{1 if 0.0005 <= share < 0.1 else 0}f} %"


def summary(runs: Sequence[RunPage]) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of the summary table: a name, and a cell for each run."""

    def row(name: str, cell: Any) -> tuple[str, list[str]]:
        return name, [str(cell(run)) for run in runs]

    yield row("state", lambda run: run.state)
    yield row("recipe", lambda run: run.recipe)
    yield row("tags", lambda run: run.tags)
    yield row("started", lambda run: _when(run.history.began))
    yield row("time", lambda run: duration(run.history.seconds))
    yield row("samples/s", lambda run: f"{run.speed:.1f}" if run.speed else "")
    yield row("an epoch", lambda run: duration(run.epoch_seconds) if run.epoch_seconds else "")
    yield row("cost", lambda run: _cost(run, run.history.seconds))
    yield row("cost of an epoch", lambda run: _cost(run, run.epoch_seconds))
    yield row("metrics", lambda run: metrics(run.last_metrics))
    yield row("hosts", lambda run: short_names(list(dict.fromkeys(run.hosts))))
    yield row("ranks", _ranks)
    yield row(
        "precision, backend",
        lambda run: f"{at['precision']}, {at['backend']}" if (at := run.history.start) else "",
    )
    fields = [fields_of(run.record.get("recipe", {})) for run in runs]
    for name in (*SHOWN, *differing(fields)):
        yield name, [str(recipe.get(name, "")) for recipe in fields]
    yield row("steps", _steps)
    yield row("goodput", lambda run: percent(run.history.goodput) if run.history.steps else "")
    yield row(
        "share of the matmul peak",
        lambda run: percent(run.parts.limit_share) if run.parts and run.parts.limit_share else "",
    )
    yield row("restarts", lambda run: len(run.history.restarts) or "")
    yield row("checkpoints", lambda run: len(run.history.checkpoints) or "")
    yield row("stack", lambda run: run.record.get("stack", {}).get("name", ""))
    yield row("model", lambda run: run.history.result.get("model", ""))


def differing(fields: Sequence[Mapping[str, Any]], besides: Sequence[str] = SHOWN) -> list[str]:
    """Return the fields whose values differ between recipes, except the fields in `besides`.

    >>> differing([{"model": "a", "training.lr": 1}, {"model": "b", "training.lr": 1}])
    ['model']
    """
    names = dict.fromkeys(name for recipe in fields for name in recipe if name not in besides)
    return [name for name in names if len({json.dumps(recipe.get(name)) for recipe in fields}) > 1]


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC") if seconds else ""


def _cost(run: RunPage, seconds: float) -> str:
    price = recorded_price(run.record)
    return price.shown(price.cost(seconds)) if price and seconds else ""


def _ranks(run: RunPage) -> str:
    start = run.history.start
    if not start:
        return ""
    return f"{start['world_size']}, {counted(start['threads_per_rank'], 'thread')} each"


def _steps(run: RunPage) -> str:
    steps = run.history.steps
    return f"{steps[-1]['step']} of {run.history.start.get('steps', '?')}" if steps else ""


def reasons(run: RunPage) -> str:
    """Explain in sentences what limits the speed of a run; "" if it is unknown."""
    parts, whole = run.parts, run.whole
    if not parts or not whole:
        return ""
    shares = parts.shares
    of = ", ".join(f"{percent(share)} {name}" for name, share in shares.items())
    sentences = [f"A step takes {1e3 * parts.seconds:.0f} ms: {of}."]
    if parts.limit_share:
        rate = sum(run.history.products["gflops"])
        sentences.append(
            f"Training reaches {percent(parts.limit_share)} of the matmul peak, the {rate:.0f} "
            "GFLOP/s that all ranks would reach if a step consisted only of matrix multiplications."
        )
    if len(whole.ranks) > 1:
        sentences.append(f"A rank sends {whole.sent_bytes / whole.steps / 1e6:.1f} MB per step.")
    most = max(ADVICE, key=lambda name: shares[name])
    return " ".join([*sentences, ADVICE[most] if shares[most] >= WORTH else COMPUTING])


WORTH = 0.1  # minimum saved fraction of a step for advice
COMPUTING = "Computing limits the speed: use more hosts, or CPUs with faster matrix multiplication."
ADVICE = {
    "communication": "After computing, communication takes the most time: a larger batch, "
    "gradients in bf16 (training.gradient_dtype=bf16) or fewer ranks reduce it; ftcluster bench "
    "allreduce compares backends.",
    "input": "After computing, preparing batches takes the most time: reduce max_length or use "
    "faster disks.",
    "waiting": "After computing, waiting for slower ranks takes the most time: find the slow host "
    "below and run ftcluster check.",
}


def costs(runs: Sequence[RunPage]) -> Iterator[tuple[str, list[HostCost], str]]:
    """Yield for each run: its label, the costs of its hosts (slowest first) and a conclusion."""
    for run in runs:
        if not run.costs:
            continue
        first, *others = run.costs
        if not others:
            text = f"All ranks are on {first.host}."
        elif first.saved < 0.01:
            text = "No host slows down training by more than 1 % of a step."
        else:
            text = (
                f"{first.host} is the slowest host: if it were as fast as {others[0].host}, "
                f"a step would take up to {percent(first.saved)} less time."
            )
        named = [
            f"At step {event['step']}: {event['message']}." for event in run.history.slow_hosts
        ]
        yield run.label, run.costs, " ".join([text, *named])
