"""The page: what is known of some runs, as text, tables and pictures. Pure but for its template."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import resources
from math import isfinite
from statistics import fmean
from typing import Any

import altair as alt
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ftcluster.progress.format import duration, metrics
from ftcluster.report import charts
from ftcluster.report.analysis import (
    HostCost,
    NextHost,
    StepParts,
    host_costs,
    next_host,
    rank_hosts,
    step_parts,
)
from ftcluster.report.cost import recorded_price
from ftcluster.report.files import RunFiles
from ftcluster.report.history import History, history_of, totals
from ftcluster.report.svg import svg_of
from ftcluster.text.host_names import short_names
from ftcluster.text.plural import counted
from ftcluster_common import __version__
from ftcluster_common.cpu_list import format_cpus, parse_cpus
from ftcluster_common.rank_times import Interval, RankTimes

TEMPLATE = "page.html.j2"
MANY = 32  # bars of a picture; more ranks are shown as hosts
METRICS = 6  # pictures of metrics
SECTIONS = ("options", "training")  # of a recipe
SHOWN = (
    "batch_size",
    "training.learning_rate",
    "training.seed",
)  # fields; others where they differ
FURTHER = 4  # times as many hosts as were measured are shown as predicted


@dataclass(frozen=True)
class Picture:
    """A picture with its title, and what it shows in a sentence."""

    title: str
    svg: Markup
    note: str = ""


@dataclass(frozen=True)
class RunPage:
    """What the page says of one run.

    Attributes:
        label: its name on the page.
    """

    label: str
    files: RunFiles

    @cached_property
    def history(self) -> History:
        """Its events."""
        return history_of(self.files.events)

    @property
    def record(self) -> dict[str, Any]:
        """Its record."""
        return self.files.record

    @property
    def recipe(self) -> str:
        """The recipe's name, or that of the script."""
        return str(self.record.get("recipe", {}).get("name") or self.record.get("kind", "script"))

    @cached_property
    def hosts(self) -> list[str]:
        """The host of each rank."""
        return rank_hosts(self.history.ranks, self.record)

    @cached_property
    def whole(self) -> Interval | None:
        """All of its training that the ranks have reported."""
        return totals(self.history.intervals)

    @cached_property
    def parts(self) -> StepParts | None:
        """Where a step's time went."""
        return step_parts(self.whole, self.history.products) if self.whole else None

    @cached_property
    def costs(self) -> list[HostCost]:
        """What each host costs."""
        return host_costs(self.whole, self.hosts) if self.whole else []

    @cached_property
    def next(self) -> NextHost | None:
        """What one more host would bring."""
        if not self.whole or not self.speed:
            return None
        return next_host(self.whole, self.speed, len(set(self.hosts)))

    @property
    def speed(self) -> float:
        """Samples per second of its training."""
        history = self.history
        last = history.steps[-1]["samples_per_second"] if history.steps else 0.0
        return float(history.result.get("samples_per_second", last))

    @property
    def epoch_seconds(self) -> float:
        """Of the training loop; 0 if it is not known."""
        samples = self.history.start.get("train_samples", 0)
        return float(samples / self.speed) if self.speed else 0.0

    @property
    def state(self) -> str:
        """Its state."""
        return str(self.history.end.get("state", "running"))

    @property
    def last_metrics(self) -> dict[str, float]:
        """Of the result, or else of the last evaluation."""
        evaluations = self.history.evaluations
        found = self.history.result or (evaluations[-1] if evaluations else {})
        return dict(found.get("metrics", {}))


def render(files: Sequence[RunFiles], now: datetime, bench: Mapping[str, Any] | None = None) -> str:
    """The page.

    Args:
        files: of each run, in the order of the page.
        bench: the document of `bench scaling --json`, or nothing.
    """
    runs = [RunPage(label, one) for label, one in zip(labels(files), files, strict=True)]
    text = resources.files("ftcluster.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text).render(
        title=files[0].run if len(files) == 1 else ", ".join(run.label for run in runs),
        version=__version__,
        now=now.strftime("%Y-%m-%d %H:%M UTC"),
        runs=runs,
        summary=[(name, cells) for name, cells in summary(runs) if any(cells)],
        places=list(places(runs)),
        course=list(course(runs)),
        speed=list(speed(runs)),
        reasons=[(run.label, text) for run in runs if (text := reasons(run))],
        costs=list(costs(runs)),
        growth=list(growth(runs, bench)),
        outlook=[(run.label, run.next) for run in runs if run.next],
        percent=percent,
        json=json,
    )


def labels(files: Sequence[RunFiles]) -> list[str]:
    """Short names of runs, with the ends of their ids; the ids if these do not differ."""
    names = [f"{one.run.split('-')[0]} {one.run.rpartition('-')[2]}" for one in files]
    return names if len(set(names)) == len(names) else [one.run for one in files]


def percent(share: float) -> str:
    """A part of 1.

    >>> percent(0.1234), percent(0.004)
    ('12 %', '0.4 %')
    """
    return f"{100 * share:.{1 if 0.0005 <= share < 0.1 else 0}f} %"


def summary(runs: Sequence[RunPage]) -> Iterator[tuple[str, list[str]]]:
    """The rows of the table: a name, and a cell for each run."""

    def row(name: str, cell: Any) -> tuple[str, list[str]]:
        return name, [str(cell(run)) for run in runs]

    yield row("state", lambda run: run.state)
    yield row("recipe", lambda run: run.recipe)
    yield row("started", lambda run: _when(run.history.began))
    yield row("time", lambda run: duration(run.history.seconds))
    yield row("samples/s", lambda run: f"{run.speed:.1f}" if run.speed else "")
    yield row("an epoch", lambda run: duration(run.epoch_seconds) if run.epoch_seconds else "")
    yield row("cost", lambda run: _cost(run, run.history.seconds))
    yield row("cost of an epoch", lambda run: _cost(run, run.epoch_seconds))
    yield row("metrics", lambda run: metrics(run.last_metrics))
    yield row("hosts", lambda run: short_names(list(dict.fromkeys(run.hosts))))
    yield row("ranks", _ranks)
    yield row("precision, backend", _backend)
    fields = [fields_of(run.record.get("recipe", {})) for run in runs]
    for name in (*SHOWN, *differing(fields)):
        yield name, [str(known.get(name, "")) for known in fields]
    yield row("steps", _steps)
    yield row("goodput", lambda run: percent(run.history.goodput) if run.history.steps else "")
    yield row(
        "share of the products' limit",
        lambda run: percent(run.parts.limit_share) if run.parts and run.parts.limit_share else "",
    )
    yield row("restarts", lambda run: len(run.history.restarts) or "")
    yield row("checkpoints", lambda run: len(run.history.checkpoints) or "")
    yield row("stack", lambda run: run.record.get("stack", {}).get("name", ""))
    yield row("model", lambda run: run.history.result.get("model", ""))


def fields_of(recipe: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """A recipe's fields under the names that users set them by.

    >>> fields_of({"name": "mrpc", "options": {"max_length": 64}, "training": {"seed": 7}})
    {'max_length': 64, 'training.seed': 7}
    """
    found: dict[str, Any] = {}
    for name, value in recipe.items():
        if name in SECTIONS:
            found |= fields_of(value, "training." if name == "training" else "")
        elif section or name != "name":
            found[f"{section}{name}"] = value
    return found


def differing(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names, besides those that are always shown, whose values differ.

    >>> differing([{"model": "a", "training.lr": 1}, {"model": "b", "training.lr": 1}])
    ['model']
    """
    names = dict.fromkeys(name for known in fields for name in known if name not in SHOWN)
    return [name for name in names if len({json.dumps(known.get(name)) for known in fields}) > 1]


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


def _backend(run: RunPage) -> str:
    start = run.history.start
    return f"{start['precision']}, {start['backend']}" if start else ""


def _steps(run: RunPage) -> str:
    steps = run.history.steps
    return f"{steps[-1]['step']} of {run.history.start.get('steps', '?')}" if steps else ""


@dataclass(frozen=True)
class HostPlace:
    """Hosts on which the same ranks have the same cores.

    Attributes:
        runs: labels of the runs.
        hosts: their names, and what they are.
        ranks: a colour and a text for each rank.
    """

    runs: str
    hosts: str
    about: str
    svg: Markup
    ranks: list[tuple[str, str]]


def places(runs: Sequence[RunPage]) -> Iterator[HostPlace]:
    """What ran where; hosts that are alike are drawn once."""
    alike: dict[str, tuple[list[str], list[str], dict[str, Any], list[dict[str, Any]]]] = {}
    for run in runs:
        facts = {host["name"]: host for host in run.record.get("facts", ())}
        for host in dict.fromkeys(run.hosts):
            own = [
                {**rank, "local": number}
                for number, rank in enumerate(
                    rank
                    for rank, name in zip(run.history.ranks, run.hosts, strict=True)
                    if name == host
                )
            ]
            kind = facts.get(host, {})
            shape = [{key: rank[key] for key in ("local", "cpus", "threads")} for rank in own]
            key = json.dumps([shape, kind.get("numa"), kind.get("cpu_model")])
            labels, hosts, _, _ = alike.setdefault(key, ([], [], kind, own))
            labels += [] if run.label in labels else [run.label]
            hosts += [] if host in hosts else [host]
    for names, hosts, kind, own in alike.values():
        rank_of = {cpu: rank["local"] for rank in own for cpu in parse_cpus(rank["cpus"])}
        nodes: list[tuple[str, Sequence[int]]] = [
            (f"NUMA node {node['node']}", parse_cpus(node["cpus"]))
            for node in kind.get("numa", ())
            if node["cores"]
        ] or [("cores with ranks", sorted(rank_of))]
        known = {cpu for _, cpus in nodes for cpu in cpus}
        if more := sorted(rank_of.keys() - known):  # second threads of cores
            nodes.append(("further hardware threads", tuple(more)))
        about = ", ".join(
            part
            for part in (
                kind.get("cpu_model", ""),
                counted(kind["cores"], "core") if kind else "",
                f"{kind['memory_bytes'] / 2**30:.0f} GiB" if kind else "",
            )
            if part
        )
        several = len(hosts) > 1
        yield HostPlace(
            ", ".join(names) if len(runs) > 1 else "",
            short_names(hosts),
            about,
            Markup(svg_of(charts.cores(nodes, rank_of), f"cores of {short_names(hosts)} by rank")),
            [
                (
                    charts.RUNS[place % len(charts.RUNS)],
                    f"{'local rank' if several else 'rank'} {place if several else rank['rank']}: "
                    f"CPUs {format_cpus(parse_cpus(rank['cpus']))}, "
                    f"{counted(rank['threads'], 'thread')}{_memory(rank['memory_nodes'])}",
                )
                for place, rank in enumerate(own)
            ],
        )


def _memory(nodes: Sequence[int] | None) -> str:
    return f", memory of NUMA node {', '.join(map(str, nodes))}" if nodes else ""


def picture(title: str, chart: alt.TopLevelMixin, note: str = "") -> Picture:
    """A picture of a chart."""
    return Picture(title, Markup(svg_of(chart, title)), note)


def course(runs: Sequence[RunPage]) -> Iterator[Picture]:
    """How the runs went: curves and a time line."""
    losses = _rows(runs, lambda run: [(one["step"], one["loss"]) for one in run.history.steps])
    if losses:
        yield picture("Loss", charts.curve(losses, "x", "y", "step", "training loss"))
    names = dict.fromkeys(
        name for run in runs for one in run.history.evaluations for name in one["metrics"]
    )
    for name in list(names)[:METRICS]:
        found = _rows(
            runs,
            lambda run: [
                (one["step"], one["metrics"][name])  # noqa: B023 - called at once
                for one in run.history.evaluations
                if name in one["metrics"]  # noqa: B023
            ],
        )
        chart = charts.curve(found, "x", "y", "step", name)
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
            {"run": run.label, "what": what, "at": (one["time"] - began) / 60}
            for what, events in (
                ("checkpoint", run.history.checkpoints), ("restart", run.history.restarts),
            )
            for one in events
        ]  # fmt: skip
    if spans:
        yield picture("What it did when", charts.time_line(spans, marks))


def speed(runs: Sequence[RunPage]) -> Iterator[Picture]:
    """How fast the runs were, and why."""
    over_time = _rows(
        runs, lambda run: [((at - run.history.began) / 60, y) for at, y in run.history.speeds]
    )
    if over_time:
        chart = charts.curve(
            over_time, "x", "y", "minutes since the launch", "samples/s", zero=True
        )
        note = "between two logs, without evaluation and checkpoints"
        yield picture("Samples per second over time", chart, note)
    bars = [
        {
            "run": run.label,
            "name": name,
            "value": run.speed
            * whole.seconds
            / len(whole.ranks)
            / fmean(one.work for one in ranks),
        }
        for run, whole, name, ranks in _bars(runs)
    ]
    if bars:
        note = "while it computes and reads: what it would have if it waited for no other"
        yield picture("Samples per second by rank", charts.bars(bars, "samples/s"), note)
    known = [(run, run.parts) for run in runs if run.parts]
    if known:
        rows = [
            {"name": run.label, "part": part, "value": value}
            for run, parts in known
            for part, value in (
                ("products", parts.products), ("other work", parts.other),
                ("communication", parts.communication), ("input", parts.input),
                ("waiting", parts.waiting),
            )
        ]  # fmt: skip
        title, note = (
            "Where a step's time goes",
            (
                "products: what the model's matrix products take at their own speed; "
                "communication: what the backward pass does not hide"
            ),
        )
        yield picture(title, charts.shares(rows, charts.PARTS, "milliseconds"), note)
    by_rank = [
        {
            "name": name,
            "part": part,
            "value": fmean(getattr(one, part) for one in ranks) / whole.seconds,
        }
        for run, whole, name, ranks in _bars(runs)
        for part in charts.SHARES
    ]
    if by_rank:
        chart = charts.shares(by_rank, charts.SHARES, "of its time", percent=True)
        yield picture("Each rank's time", chart, "waiting: for a slower rank")


def _rows(runs: Sequence[RunPage], points: Any) -> list[Mapping[str, Any]]:
    """Points of each run, few enough for a picture."""
    return [
        row
        for run in runs
        for row in charts.thinned(
            [{"run": run.label, "x": x, "y": y} for x, y in points(run) if isfinite(y)]
        )
    ]


def _bars(runs: Sequence[RunPage]) -> Iterator[tuple[RunPage, Interval, str, list[RankTimes]]]:
    """What has a bar: each rank, or each host where ranks are many; with its times."""
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


def reasons(run: RunPage) -> str:
    """Why it was this fast, in sentences; "" where that is not known."""
    parts, whole = run.parts, run.whole
    if not parts or not whole:
        return ""
    shares = parts.shares
    of = ", ".join(f"{percent(share)} {name}" for name, share in shares.items())
    found = [f"A step takes {1e3 * parts.seconds:.0f} ms: {of}."]
    if parts.limit_share:
        rate = sum(run.history.products["gflops"])
        found.append(
            f"It reaches {percent(parts.limit_share)} of the products' limit: what its ranks' "
            f"{rate:.0f} GFLOP/s of matrix products alone would give."
        )
    if len(whole.ranks) > 1:
        found.append(f"A rank sends {whole.sent_bytes / whole.steps / 1e6:.1f} MB a step.")
    most = max(ADVICE, key=lambda name: shares[name])
    return " ".join([*found, ADVICE[most] if shares[most] >= WORTH else COMPUTING])


WORTH = 0.1  # of a step
COMPUTING = "Computing limits it: more hosts, or CPUs with faster matrix products, make it faster."
ADVICE = {
    "communication": "Besides computing, communication costs most: a larger batch, gradients in "
    "bf16 (training.gradient_dtype=bf16) or fewer ranks have less of it; ftcluster bench allreduce "
    "compares backends.",
    "input": "Besides computing, making batches costs most: see max_length, and the disks.",
    "waiting": "Besides computing, waiting for slower ranks costs most: see below which host, and "
    "ftcluster check.",
}


def costs(runs: Sequence[RunPage]) -> Iterator[tuple[str, list[HostCost], str]]:
    """The hosts of each run by what they cost, and what it means."""
    for run in runs:
        if not run.costs:
            continue
        first, *others = run.costs
        if not others:
            text = f"All ranks are on {first.host}."
        elif first.saved < 0.01:
            text = "No host costs more than the others: less than 1 % of a step."
        else:
            text = (
                f"{first.host} costs most: if it were as fast as {others[0].host}, "
                f"a step would take up to {percent(first.saved)} less."
            )
        named = [f"At step {one['step']}: {one['message']}." for one in run.history.slow_hosts]
        yield run.label, run.costs, " ".join([text, *named])


def growth(runs: Sequence[RunPage], bench: Mapping[str, Any] | None) -> Iterator[Picture]:
    """How samples per second grow with hosts: the runs of a recipe, and `bench scaling`."""
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
    """The fastest mode for each number of hosts or ranks, and what its model predicts."""
    x = "hosts" if bench["points"][-1]["hosts"] > 1 else "ranks"
    best: dict[int, dict[str, Any]] = {}
    for one in bench["points"]:
        point = {"run": one["run"], "x": one[x], "y": one["samples_per_second"]}
        if point["y"] > best.get(point["x"], {"y": 0.0})["y"]:
            best[point["x"]] = point
    points = [best[n] for n in sorted(best)]
    predicted = (bench.get("model") or {"predicted": ()})["predicted"]
    further = [
        {"x": one["hosts"], "y": one["samples_per_second"][one["fastest"]]}
        for one in predicted
        if points[-1]["x"] < one["hosts"] <= FURTHER * points[-1]["x"]
    ]
    expected = [points[-1], *further] if further else []
    return _scaling(f"bench scaling, {bench['recipe']}", points, expected, x)


def _scaling(title: str, points: Any, expected: Any, x: str) -> Picture:
    first = points[0]
    most = max(point["x"] for point in (*points, *expected))
    ideal = [{"x": n, "y": first["y"] * n / first["x"]} for n in (0, most)]
    note = "dashed grey: ideal, as fast a host as the smallest run"
    if expected:
        note += "; rings: predicted, with as many samples a rank as now"
    return picture(title, charts.scaling(points, ideal, expected, x), note)
