"""Draws the pictures of the page from the runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

import altair as alt
from markupsafe import Markup

from ftcluster.report import charts
from ftcluster.report.charts import svg_of
from ftcluster.report.run_page import RunPage
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus
from ftcluster_common.protocol.rank_times import Interval, RankTimes

MANY = 32  # maximum number of bars; with more ranks, each bar is a host
METRICS = 6  # maximum number of pictures of metrics
SEVERAL, DECADE = 3, 10  # minimum runs to plot a field, and ratio for a log axis
FURTHER = 4  # predictions reach up to this multiple of the measured hosts


@dataclass(frozen=True)
class Picture:
    """A picture with its title and a one-line note."""

    title: str
    svg: Markup
    note: str = ""


@dataclass(frozen=True)
class HostPlace:
    """Hosts on which the same ranks have the same cores.

    Attributes:
        runs: labels of the runs.
        hosts: names of the hosts.
        about: description of the hosts' hardware.
        ranks: colour and text of each rank.
    """

    runs: str
    hosts: str
    about: str
    svg: Markup
    ranks: list[tuple[str, str]]


def places(runs: Sequence[RunPage]) -> Iterator[HostPlace]:
    """Draw the placement of ranks on cores, in one picture for hosts with equal placement."""
    alike: dict[str, list[tuple[RunPage, str, Mapping[str, Any], list[Mapping[str, Any]]]]] = {}
    for run in runs:
        facts = {host["name"]: host for host in run.record.get("facts", ())}
        for host in dict.fromkeys(run.hosts):
            ranked = zip(run.history.ranks, run.hosts, strict=True)
            ranks = [rank for rank, name in ranked if name == host]
            kind = facts.get(host, {})
            shape = [(rank["cpus"], rank["threads"]) for rank in ranks]
            key = json.dumps([shape, kind.get("numa"), kind.get("cpu_model")])
            alike.setdefault(key, []).append((run, host, kind, ranks))
    for group in alike.values():
        _, _, kind, ranks = group[0]
        hosts = list(dict.fromkeys(host for _, host, _, _ in group))
        labels = list(dict.fromkeys(run.label for run, *_ in group))
        names = short_names(hosts)
        yield HostPlace(
            ", ".join(labels) if len(runs) > 1 else "",
            names,
            _about(kind),
            _cores(kind, ranks, f"cores of {names} by rank"),
            [
                (charts.RUNS[place % len(charts.RUNS)], _rank_text(rank, place, len(hosts) > 1))
                for place, rank in enumerate(ranks)
            ],
        )


def _cores(kind: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], title: str) -> Markup:
    """Draw the cores of a host with their ranks; without facts, draw only cores with ranks."""
    rank_of = {cpu: place for place, rank in enumerate(ranks) for cpu in parse_cpus(rank["cpus"])}
    nodes: list[tuple[str, Sequence[int]]] = [
        (f"NUMA node {node['node']}", parse_cpus(node["cpus"]))
        for node in kind.get("numa", ())
        if node["cores"]
    ] or [("cores with ranks", sorted(rank_of))]
    if more := sorted(rank_of.keys() - {cpu for _, cpus in nodes for cpu in cpus}):
        nodes.append(("further hardware threads", more))
    return Markup(svg_of(charts.cores(nodes, rank_of), title))


def _about(kind: Mapping[str, Any]) -> str:
    """Describe a host's hardware; "" if its facts are unknown."""
    if not kind:
        return ""
    memory = f"{kind['memory_bytes'] / 2**30:.0f} GiB"
    return f"{kind['cpu_model']}, {counted(kind['cores'], 'core')}, {memory}"


def _rank_text(rank: Mapping[str, Any], place: int, several: bool) -> str:
    """Describe a rank's cores, threads and memory."""
    name = f"local rank {place}" if several else f"rank {rank['rank']}"
    nodes = rank["memory_nodes"]
    memory = f", memory of NUMA node {', '.join(map(str, nodes))}" if nodes else ""
    cpus = format_cpus(parse_cpus(rank["cpus"]))
    return f"{name}: CPUs {cpus}, {counted(rank['threads'], 'thread')}{memory}"


def picture(title: str, chart: alt.TopLevelMixin, note: str = "") -> Picture:
    """Render a chart with its title."""
    return Picture(title, Markup(svg_of(chart, title)), note)


def tried(
    runs: Sequence[RunPage], fields: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Iterator[Picture]:
    """Plot the metric against each numeric recipe field that differs between the runs.

    Args:
        fields: recipe fields of each run.
        names: names of the fields that differ.
    """
    if len(runs) < SEVERAL or len({run.recipe for run in runs}) > 1:
        return
    for name in names:
        values = [
            (run, value, run.main_metric)
            for run, of_run in zip(runs, fields, strict=True)
            if isinstance(value := of_run.get(name), int | float) and not isinstance(value, bool)
        ]
        drawn = [(run, x, metric[1]) for run, x, metric in values if metric]
        drawn = [(run, x, y) for run, x, y in drawn if isfinite(y)]
        rows = [{"run": run.label, "x": x, "y": y} for run, x, y in drawn]
        numbers = sorted({x for _, x, _ in drawn})
        if len(numbers) < 2 or len({metric[0] for _, _, metric in values if metric}) > 1:
            continue
        metric = next(metric[0] for _, _, metric in values if metric)
        log = numbers[0] > 0 and numbers[-1] >= DECADE * numbers[0]
        yield picture(f"{metric} by {name}", charts.points(rows, name, metric, log))


def course(runs: Sequence[RunPage]) -> Iterator[Picture]:
    """Draw curves and a time line of the runs."""
    losses = _rows(
        runs, lambda run: [(event["step"], event["loss"]) for event in run.history.steps]
    )
    if losses:
        yield picture("Loss", charts.curve(losses, "x", "y", "step", "training loss"))
    names = dict.fromkeys(
        name for run in runs for event in run.history.evaluations for name in event["metrics"]
    )
    for name in list(names)[:METRICS]:
        values = _rows(
            runs,
            lambda run: [
                (event["step"], event["metrics"][name])  # noqa: B023 - called at once
                for event in run.history.evaluations
                if name in event["metrics"]  # noqa: B023
            ],
        )
        chart = charts.curve(values, "x", "y", "step", name)
        yield picture(f"Evaluation: {name}", chart)
    spans, marks = [], []
    for run in runs:
        began = run.history.began
        spans += [
            {
                "run": run.label, "doing": span.doing,
                "began": (span.began - began) / 60, "ended": (span.ended - began) / 60,
            }
            for span in run.history.spans
        ]  # fmt: skip
        marks += [
            {"run": run.label, "what": what, "at": (event["time"] - began) / 60}
            for what, events in (
                ("checkpoint", run.history.checkpoints), ("restart", run.history.restarts),
            )
            for event in events
        ]  # fmt: skip
    if spans:
        yield picture("Activity over time", charts.time_line(spans, marks))


def speed(runs: Sequence[RunPage]) -> Iterator[Picture]:
    """Draw the speed of the runs and the parts of a step."""
    over_time = _rows(
        runs, lambda run: [((at - run.history.began) / 60, y) for at, y in run.history.speeds]
    )
    if over_time:
        chart = charts.curve(
            over_time, "x", "y", "minutes since the launch", "samples/s", zero=True
        )
        note = "between two logged steps, without evaluation and checkpoints"
        yield picture("Samples per second over time", chart, note)
    bars = [
        {
            "run": run.label,
            "name": name,
            "value": run.speed
            * whole.seconds
            / len(whole.ranks)
            / fmean(times.work for times in ranks),
        }
        for run, whole, name, ranks in _bars(runs)
    ]
    if bars:
        note = "counts only computing and reading, as if the rank never waited for another rank"
        yield picture("Samples per second by rank", charts.bars(bars, "samples/s"), note)
    with_parts = [(run, run.parts) for run in runs if run.parts]
    if with_parts:
        rows = [
            {"name": run.label, "part": part, "value": value}
            for run, parts in with_parts
            for part, value in (
                ("matmuls", parts.matmuls), ("other work", parts.other),
                ("communication", parts.communication), ("input", parts.input),
                ("waiting", parts.waiting),
            )
        ]  # fmt: skip
        title, note = (
            "Where a step's time goes",
            (
                "matmuls: time of the model's matrix multiplications at their measured peak rate; "
                "communication: only the part that the backward pass does not hide"
            ),
        )
        yield picture(title, charts.shares(rows, charts.PARTS, "milliseconds"), note)
    for run in runs:
        if run.history.timeline:
            title = "Exchanges beside the backward pass" + (f": {run.label}" if runs[1:] else "")
            note = "one step of rank 0; an exchange sums a bucket of gradients over the ranks"
            yield picture(title, charts.step_line(run.history.timeline), note)
    by_rank = [
        {
            "name": name,
            "part": part,
            "value": fmean(getattr(times, part) for times in ranks) / whole.seconds,
        }
        for run, whole, name, ranks in _bars(runs)
        for part in charts.SHARES
    ]
    if by_rank:
        chart = charts.shares(by_rank, charts.SHARES, "share of the rank's time", percent=True)
        yield picture("Each rank's time", chart, "waiting: time spent waiting for a slower rank")


def _rows(runs: Sequence[RunPage], points: Any) -> list[Mapping[str, Any]]:
    """Return the points of each run; skip points if a picture cannot show all of them."""
    return [
        row
        for run in runs
        for row in charts.thinned(
            [{"run": run.label, "x": x, "y": y} for x, y in points(run) if isfinite(y)]
        )
    ]


def _bars(runs: Sequence[RunPage]) -> Iterator[tuple[RunPage, Interval, str, list[RankTimes]]]:
    """Yield the bars and times of each run: a bar per rank, or per host if there are many ranks."""
    many = sum(len(run.hosts) for run in runs) > MANY
    for run in runs:
        if not run.whole or len(run.hosts) != len(run.whole.ranks):
            continue
        several = len(set(run.hosts)) > 1
        of: dict[str, list[RankTimes]] = {}
        for rank, (host, times) in enumerate(zip(run.hosts, run.whole.ranks, strict=True)):
            name = host if many else f"{rank} {host}" if several else f"rank {rank}"
            of.setdefault(f"{run.label}: {name}" if len(runs) > 1 else name, []).append(times)
        for name, ranks in of.items():
            yield run, run.whole, name, ranks


def growth(runs: Sequence[RunPage], bench: Mapping[str, Any] | None) -> Iterator[Picture]:
    """Draw samples per second by number of hosts: runs of the same recipe, and `bench scaling`."""
    for recipe in dict.fromkeys(run.recipe for run in runs):
        alike = [run for run in runs if run.recipe == recipe and run.speed and run.hosts]
        if not alike:
            continue
        by_host = len({len(set(run.hosts)) for run in alike}) > 1 or len(set(alike[0].hosts)) > 1
        by_host = by_host or len({len(run.hosts) for run in alike}) == 1
        points = sorted(
            (
                {
                    "run": run.label,
                    "x": len(set(run.hosts)) if by_host else len(run.hosts),
                    "y": run.speed,
                }
                for run in alike
            ),
            key=lambda point: (point["x"], point["y"]),
        )  # fmt: skip
        last = max(alike, key=lambda run: (len(set(run.hosts)), run.speed))
        expected = []
        if by_host and last.next:
            expected = [points[-1], {"x": last.next.hosts, "y": last.next.same_share}]
        yield _scaling(f"Scaling of {recipe}", points, expected, "hosts" if by_host else "ranks")
    if bench:
        yield _bench_scaling(bench)


def _bench_scaling(bench: Mapping[str, Any]) -> Picture:
    """Draw the fastest mode for each number of hosts or ranks, and the model's predictions."""
    x = "hosts" if bench["points"][-1]["hosts"] > 1 else "ranks"
    best: dict[int, dict[str, Any]] = {}
    for row in bench["points"]:
        point = {"run": row["run"], "x": row[x], "y": row["samples_per_second"]}
        if point["y"] > best.get(point["x"], {"y": 0.0})["y"]:
            best[point["x"]] = point
    points = [best[n] for n in sorted(best)]
    predicted = (bench.get("model") or {"predicted": ()})["predicted"]
    further = [
        {"x": row["hosts"], "y": row["samples_per_second"][row["fastest"]]}
        for row in predicted
        if points[-1]["x"] < row["hosts"] <= FURTHER * points[-1]["x"]
    ]
    expected = [points[-1], *further] if further else []
    return _scaling(f"bench scaling, {bench['recipe']}", points, expected, x)


def _scaling(title: str, points: Any, expected: Any, x: str) -> Picture:
    first = points[0]
    most = max(point["x"] for point in (*points, *expected))
    ideal = [{"x": n, "y": first["y"] * n / first["x"]} for n in (0, most)]
    note = "dashed grey: ideal, with the per-host speed of the smallest run"
    if expected:
        note += "; rings: predicted, with the same number of samples per rank"
    return picture(title, charts.scaling(points, ideal, expected, x), note)
