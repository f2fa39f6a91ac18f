"""The result of `bench scaling`, as a JSON document and as text. Pure functions only.

A point is a training run that was measured on some number of hosts. At every point, each rank
processes the same number of samples per step (weak scaling).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from statistics import mean
from typing import Any

from ftcluster.benchmark.scaling_model import Mode, Model, Step, fit, prediction_errors
from ftcluster.cluster.price import Price, epoch_document
from ftcluster.errors import FtclusterError
from ftcluster.progress.format import duration
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned

BYTES = {"fp32": 4, "bf16": 2}  # bytes per gradient element
PREDICTED = (8, 16, 32, 64, 128, 256)  # host counts to predict
BAR = 20  # length of a bar that represents 100 %, in characters
# Published results: hosts, speed-up, efficiency, and system. The single host in the Ice Lake post
# trained a different model.
REFERENCES = (
    (2, 1.7, 0.85, "Ice Lake hosts, DistilBERT (Intel and Hugging Face 2021)"),
    (4, 3.0, 0.75, "Ice Lake hosts, DistilBERT (Intel and Hugging Face 2021)"),
    (4, 3.47, 0.87, "Sapphire Rapids hosts, DistilBERT (Intel and Hugging Face 2023)"),
    (16, None, 0.93, "Sapphire Rapids hosts relative to 8 hosts, BERT-large (MLPerf training 3.0)"),
)


@dataclass(frozen=True)
class Point:
    """A training run that was measured on a number of hosts.

    Attributes:
        threads: total number of threads of all ranks.
        batch_size: samples per step, over all ranks.
        seconds: duration of a step after the warm-up.
        tokens: tokens per step of rank 0, with padding.
        waited: seconds per step that each rank was blocked in collectives.
        sent: bytes that each rank sends per step.
        latency: seconds per step that the collectives would take without payload.
        parameters: number of parameters of the model.
        slowest: name of the slowest host, on which the rank that waited least runs.
        epoch_samples: number of rows of the training data.
        price: price of the hosts; None if the price is unknown.
    """

    run: str
    mode: Mode
    hosts: int
    ranks: int
    threads: int
    batch_size: int
    seconds: float
    tokens: float
    waited: tuple[float, ...]
    sent: float
    latency: float
    parameters: int
    slowest: str
    epoch_samples: int
    price: Price | None = None

    @property
    def waiting(self) -> float:
        """The fraction of a step that ranks are blocked in collectives (mean over ranks)."""
        return mean(self.waited) / self.seconds

    def like(self, other: "Point") -> float:
        """Return the step time in seconds, scaled to the number of tokens per step of `other`."""
        waited = mean(self.waited)
        return waited + (self.seconds - waited) * other.tokens / self.tokens


def measure(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average the events `communication` of a run over its steps; return fields of a Point.

    The steps before the first event are the warm-up and are not counted.

    Raises:
        FtclusterError: there are too few events, or they are inconsistent.
    """
    if not events or not _fit(first := events[0], last := events[-1]):
        raise FtclusterError("the run did not report the steps needed for the measurement")
    steps: int = last["step"] - first["step"]

    def of_step(field: str) -> float:
        return float(last[field] - first[field]) / steps

    pairs = zip(first["waited_seconds"], last["waited_seconds"], strict=True)
    return {
        "seconds": of_step("train_seconds"),
        "tokens": of_step("tokens"),
        "sent": of_step("sent_bytes"),
        "latency": of_step("collectives") * last["latency_seconds"],
        "waited": tuple((after - before) / steps for before, after in pairs),
    }


def _fit(first: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    grows = all(first[name] < last[name] for name in ("step", "train_seconds", "tokens"))
    return grows and 0 < len(first["waited_seconds"]) == len(last["waited_seconds"])


def doubled(most: int) -> list[int]:
    """Return 1, 2, 4 and so on up to `most`, which is always the last element.

    >>> doubled(6), doubled(8)
    ([1, 2, 4, 6], [1, 2, 4, 8])
    """
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]


def share(batch_size: int, ranks: int) -> int:
    """Divide the samples of a batch equally among ranks; return the samples per rank.

    >>> share(32, 4), share(33, 4), share(2, 4)
    (8, 8, 1)
    """
    return max(1, batch_size // ranks)


def document(recipe: str, stack: str, steps: int, points: Sequence[Point]) -> dict[str, Any]:
    """Return the JSON document that `bench scaling --json` prints.

    The efficiency is the speed-up divided by the ratio of threads. It is based on threads and not
    on ranks, because the ranks of a host share its cores.
    """
    first = points[0]
    rows = []
    for point in points:
        seconds = point.like(first)
        speed = point.batch_size / seconds
        speed_up = speed / (first.batch_size / first.seconds)
        efficiency = speed_up / (point.threads / first.threads)
        rows.append(
            {
                **asdict(point),
                "mode": point.mode.name if point.ranks > 1 else None,
                "samples_per_second": round(speed, 3),
                "speed_up": round(speed_up, 3),
                "efficiency": round(efficiency, 3),
                "waiting": round(point.waiting, 4),
                "epoch": epoch_document(point.epoch_samples / speed, point.price),
            }
        )
    steps_measured = [step_of(point, first) for point in points]
    model = fit(steps_measured)
    return {
        "state": "done",
        "recipe": recipe,
        "stack": stack,
        "steps": steps,
        "points": rows,
        "references": [
            dict(zip(("hosts", "speed_up", "efficiency", "of"), reference, strict=True))
            for reference in REFERENCES
        ],
        "model": model_document(model, steps_measured, first) if model else None,
    }


def step_of(point: Point, first: Point) -> Step:
    """Convert a point to a step of the model; a rank sends (n - 1) / n of the exchanged bytes."""
    others = point.ranks - 1
    exchanged = point.sent * point.ranks / others if others else 0.0
    mode, dense = point.mode, inf
    if mode.optimizer == "whole":
        dense = 2 * BYTES[mode.dtype] * point.parameters
    size = (exchanged, max(dense, exchanged))
    return Step(mode, point.hosts, point.like(first), *size, point.latency)


def model_document(model: Model, steps: Sequence[Step], first: Point) -> dict[str, Any]:
    """Return the fitted model, its errors and its predictions."""
    samples = first.batch_size  # per host
    errors = [
        {"mode": step.mode.name, "hosts": step.hosts, "error": round(error, 4)}
        for step, error in prediction_errors(steps)
    ]
    predicted = []
    for hosts in PREDICTED:
        speeds = {
            mode.name: hosts * samples / model.seconds(mode, hosts) for mode in model.exchanged
        }
        predicted.append(
            {
                "hosts": hosts,
                "fastest": max(speeds, key=lambda name: speeds[name]),
                "samples_per_second": {name: round(speed, 2) for name, speed in speeds.items()},
                "efficiency": {
                    mode.name: round(model.efficiency(mode, hosts), 4) for mode in model.exchanged
                },
            }
        )
    return {
        "compute_seconds": model.compute,
        "backends": {
            backend: {
                "mb_per_second": 1e-6 / x if x else None,
                "fixed_seconds": {
                    optimizer: k for (of, optimizer), k in model.fixed.items() if of == backend
                },
            }
            for backend, x in model.per_byte.items()
        },
        "latency_seconds": {mode.name: latency for mode, latency in model.latency.items()},
        "exchanged_bytes": {
            mode.name: {str(hosts): round(size(hosts)) for hosts in PREDICTED}
            for mode, size in model.exchanged.items()
        },
        "errors": errors,
        "predicted": predicted,
    }


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Format the document for a terminal, line by line."""
    points = result["points"]
    first = points[0]
    samples = first["batch_size"] // first["ranks"]
    yield (
        f"recipe {result['recipe']}, stack {result['stack']}, {counted(samples, 'sample')} per "
        f"rank and step, {result['steps']} steps"
    )
    yield ""
    priced = any(point["price"] for point in points)
    head = (
        "hosts", "ranks", "threads", "mode", "samples/s", "speed-up", "efficiency", "waiting",
        "slowest", *(("an epoch", "costs") if priced else ()), "",
    )  # fmt: skip
    rows = [
        (
            str(point["hosts"]), str(point["ranks"]), str(point["threads"]), point["mode"] or "-",
            f"{point['samples_per_second']:.1f}", f"{point['speed_up']:.2f}",
            f"{point['efficiency']:.0%}", f"{point['waiting']:.1%}", _slowest(point),
            *(_epoch(point) if priced else ()), bar(point["efficiency"]),
        )
        for point in points
    ]  # fmt: skip
    rows += [
        (
            str(other["hosts"]), "", "", "reference", "",
            f"{other['speed_up']:.2f}" if other["speed_up"] else "", f"{other['efficiency']:.0%}",
            "", "", *(("", "") if priced else ()), f"{bar(other['efficiency'])} {other['of']}",
        )
        for other in result["references"]
    ]  # fmt: skip
    yield from aligned([head, *rows])
    if first["hosts"] == points[-1]["hosts"]:
        yield ""
        yield (
            "ranks of one host share its cores, so the efficiency can be more than 100 %; such "
            "points are not used for predictions"
        )
    if model := result["model"]:
        yield ""
        yield from _model_lines(model)


def bar(part: float) -> str:
    """Draw a fraction as a bar of characters.

    >>> bar(0.5)
    '##########'
    """
    return "#" * round(BAR * min(part, 1.5))


def _epoch(point: Mapping[str, Any]) -> tuple[str, str]:
    """Format the duration and the cost of an epoch."""
    epoch, price = point["epoch"], point["price"]
    cost = Price(**price).shown(epoch["cost"]) if price else ""
    return duration(epoch["seconds"]), cost


def _slowest(point: Mapping[str, Any]) -> str:
    """Format the slowest host, and how much less than the mean it waits, as a share of a step."""
    waited = point["waited"]
    if len(waited) == 1:
        return "-"
    ahead = (mean(waited) - min(waited)) / point["seconds"]
    return f"{point['slowest']} (+{ahead:.1%})"


def _model_lines(model: Mapping[str, Any]) -> Iterator[str]:
    yield "model of a step: compute + latency + size / bandwidth, fitted to the points above"
    yield f"  compute: {model['compute_seconds']:.3f} s"
    for backend, fitted in model["backends"].items():
        speed = fitted["mb_per_second"]
        fixed = ", ".join(
            f"{seconds:+.3f} s per exchange ({kind} optimizer)"
            for kind, seconds in fitted["fixed_seconds"].items()
        )
        rate = f"{speed:.0f} MB/s" if speed else "no measurable bandwidth limit"
        yield f"  {backend}: {rate}, {fixed}"
    for mode, seconds in model["latency_seconds"].items():
        yield f"  {mode}: latency of {1e3 * seconds:.2f} ms"
    if errors := model["errors"]:
        sizes = [abs(error["error"]) for error in errors]
        yield (
            f"  error when a point's step time is predicted from the other points: "
            f"{mean(sizes):.1%} on average over {counted(len(errors), 'point')}, at most "
            f"{max(sizes):.1%}"
        )
    yield ""
    modes = list(model["exchanged_bytes"])
    yield "predicted efficiency, and the fastest mode:"
    head = ["hosts", *modes, "fastest"]
    rows = [
        [str(row["hosts"]), *(f"{row['efficiency'][mode]:.0%}" for mode in modes), row["fastest"]]
        for row in model["predicted"]
    ]
    yield from aligned([head, *rows])
