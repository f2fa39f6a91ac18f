"""Estimates a recipe's epoch time on some hosts from measured training runs."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

from ftcluster.cluster.facts import HostFacts
from ftcluster.errors import FtclusterError
from ftcluster.launch.record import read_record, recorded_runs
from ftcluster.paths import read_state, state_dir
from ftcluster.planning.plan import LaunchPlan
from ftcluster.recipe.recipe import load_recipe
from ftcluster.report import shipped_rates as shipped
from ftcluster.report.analysis import OPERATIONS, step_parts
from ftcluster.report.files import ended_here
from ftcluster.report.history import History, history_of, totals
from ftcluster_common.recipe import Recipe

MEASURED, ESTIMATED, GUESSED = "measured", "estimated", "guessed"
RATES = "rates.json"  # file in the state folder
GUESSED_WITHIN = 2.0  # minimum error factor of a guess for a CPU that was not measured
MOST_RUNS = 50  # maximum number of runs whose events are read (a few MB in total)
COMPARED_FIELDS = ("task", "data_config", "from_scratch", "config_overrides", "options")
COMPARED_NAMES = ("model", "data")  # compared without parent folders, which may differ

Ranks = tuple[tuple[str, int], ...]  # CPU and threads of each rank


@dataclass(frozen=True)
class PastRun:
    """The speed of a measured training run, and the settings that determine it.

    Attributes:
        recipe: fields of the recipe.
        ranks: CPU and number of threads of each rank.
        how: precision and other settings that change the speed, see `how_of`.
        samples_per_second: speed after the warm-up, excluding evaluation and checkpoints.
        epoch_samples: number of rows of the training data.
        tokens: mean number of tokens of a sample, without padding.
        weights: number of weights in the model's matmuls.
        gflops: measured matmul rate of each rank in GFLOP/s; empty if it was not measured.
        limit_share: fraction of the matmul peak that the run reached; 0 if unknown.
    """

    run: str
    recipe: Mapping[str, Any]
    ranks: Ranks
    how: tuple[Any, ...]
    samples_per_second: float
    epoch_samples: int
    tokens: float
    weights: int
    gflops: tuple[float, ...]
    limit_share: float

    @property
    def rates(self) -> Iterator[tuple[str, float]]:
        """Yield the CPU and the GFLOP/s per thread of each rank."""
        if len(self.gflops) == len(self.ranks):
            for (cpu, threads), rate in zip(self.ranks, self.gflops, strict=True):
                yield cpu, rate / threads


@dataclass(frozen=True)
class EpochTime:
    """The duration of an epoch, and how it was determined.

    Attributes:
        seconds: duration of the training loop, excluding start, evaluation and checkpoints; None
            if unknown.
        source: MEASURED, ESTIMATED, GUESSED or "".
        why: explanation for users: the run and method that the duration comes from, or the reason
            why the duration is unknown.
        run: id of the run that the duration comes from, or "".
    """

    seconds: float | None
    source: str
    why: str
    run: str = ""


def epoch_time(
    plan: LaunchPlan,
    recipe: Recipe,
    fields: Mapping[str, Any],
    hosts: Sequence[HostFacts],
    runs: Sequence[PastRun],
) -> EpochTime:
    """Return the measured or estimated epoch time of a planned training run.

    If an earlier run of the recipe used the same batch, ranks, threads and CPUs, its measured time
    is the result. Otherwise the time is estimated from a run of the recipe on other hosts.

    The estimate assumes that the slowest rank computes its matmuls at the rate measured for a
    thread of its CPU. It also assumes that the step reaches the same fraction of the matmul peak. A
    CPU that was not measured gets the rate of its generation, or else the median of the measured
    CPUs; `why` then contains the possible error.

    If the recipe with its original model and data was never trained here, the measurements shipped
    with ftcluster are used.

    Args:
        fields: fields of the recipe.
        hosts: facts of all hosts with ranks, and possibly of other hosts.
        runs: past runs, the newest first.
    """
    batch, cpus = batch_of(plan), {host.name: host.cpu_model for host in hosts}
    ranks = tuple((cpus[host.name], rank.threads) for host in plan.hosts for rank in host.placement)
    same = [run for run in runs if is_same(run.recipe, fields)]
    how = how_of(plan.precision, plan.ipex, plan.shard_optimizer, fields)
    for run in same:
        alike = sorted(run.ranks) == sorted(ranks) and run.recipe["batch_size"] == batch
        if alike and run.how == how:
            why = f"run {run.run}: {run.samples_per_second:.1f} samples/s on the same ranks"
            return EpochTime(run.epoch_samples / run.samples_per_second, MEASURED, why, run.run)
    measure = f"to measure the time on these hosts: ftcluster bench scaling {recipe.name}"
    source = next((run for run in same if run.limit_share and run.how[:2] == how[:2]), None)
    source = source or _shipped(recipe.name, fields, how)
    if not source:
        in_precision = f" in {plan.precision}" if same else ""
        return EpochTime(
            None, "", f"no run of this recipe{in_precision} is recorded here; {measure}"
        )
    rates = thread_rates([source, *runs], plan.precision) | own_rates(plan.precision)
    unknown = sorted({cpu for cpu, _ in ranks} - rates.keys())
    of_generation = {
        host.cpu_model: rate
        for host in hosts
        if (rate := shipped.RATES.get(host.cpu_generation, {}).get(plan.precision))
    }
    if not rates and unknown != sorted({*unknown} & of_generation.keys()):
        return EpochTime(None, "", f"no CPU's speed in {plan.precision} is known; {measure}")
    usual = median(rates.values()) if rates else 0.0
    spread = max([GUESSED_WITHIN, *(max(rate / usual, usual / rate) for rate in rates.values())])
    rates |= {cpu: of_generation.get(cpu, usual) for cpu in unknown}
    shares = [rank.samples or 0 for host in plan.hosts for rank in host.placement]
    operations = OPERATIONS * source.weights * source.tokens  # per sample
    step = max(
        samples * operations / (1e9 * rates[cpu] * threads)
        for samples, (cpu, threads) in zip(shares, ranks, strict=True)
    )
    seconds = source.epoch_samples / batch * step / source.limit_share
    reached = f"run {source.run}" if source.run else "this recipe on ftcluster's test hosts"
    why = (
        f"assumes that training reaches {source.limit_share:.0%} of these CPUs' matmul rate, like "
        f"{reached}; ignores differences between networks"
    )
    if unknown:
        counts = "the median of the measured CPUs"
        if of_generation.keys() >= {*unknown}:
            spread, counts = shipped.WITHIN, "a CPU of its generation"
        why += f". {', '.join(unknown)} was not measured and counts as {counts}"
    guessed = bool(unknown) or not source.run
    if guessed:
        why += (
            f": {seconds / spread:.3g} to {seconds * spread:.3g} seconds; you can set its rate "
            f"in {RATES} (docs/plan.md); {measure}"
        )
    return EpochTime(seconds, GUESSED if guessed else ESTIMATED, why, source.run)


def _shipped(name: str, fields: Mapping[str, Any], how: tuple[Any, ...]) -> PastRun | None:
    """Return the shipped measurements of a recipe with its original model and data, or None."""
    measured = shipped.RUNS.get(name)
    share = measured.limit_share.get(how[0]) if measured else None
    if not measured or not share:
        return None
    unchanged = json.loads(json.dumps(asdict(load_recipe(name))))  # in the same form as in records
    if not is_same(unchanged, fields):
        return None
    return PastRun(
        run="", recipe=fields, ranks=(), how=how, samples_per_second=0.0,
        epoch_samples=measured.epoch_samples, tokens=measured.tokens, weights=measured.weights,
        gflops=(), limit_share=share,
    )  # fmt: skip


def batch_of(plan: LaunchPlan) -> int:
    """Return the number of samples in a step, over all ranks."""
    return sum(rank.samples or 0 for host in plan.hosts for rank in host.placement)


def how_of(precision: str, ipex: bool, sharded: bool, fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the settings that change the speed, except the ranks."""
    training = fields["training"]
    names = ("gradient_accumulation_steps", "gradient_checkpointing", "sync", "sync_steps")
    return (precision, ipex, sharded, *(training.get(name) for name in names))


def is_same(recipe: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if both recipes have the same model and the same samples per epoch."""
    return all(recipe.get(name) == other.get(name) for name in COMPARED_FIELDS) and all(
        _without_folders(recipe.get(name)) == _without_folders(other.get(name))
        for name in COMPARED_NAMES
    )


def _without_folders(value: Any) -> Any:
    """Return the last part of a path; for a list of data sets, the list with such parts."""
    if isinstance(value, list):
        return [{**data_set, "path": _without_folders(data_set["path"])} for data_set in value]
    return PurePath(str(value)).name


def thread_rates(runs: Iterable[PastRun], precision: str) -> dict[str, float]:
    """Return the GFLOP/s of a thread by CPU: the median in the first run that measured the CPU."""
    medians: dict[str, float] = {}
    for run in runs:
        of_run: dict[str, list[float]] = {}
        for cpu, rate in run.rates if run.how[0] == precision else ():
            if rate > 0:  # a model may have no matmuls
                of_run.setdefault(cpu, []).append(rate)
        for cpu, rates in of_run.items():
            medians.setdefault(cpu, median(rates))
    return medians


def own_rates(precision: str) -> dict[str, float]:
    """Return the GFLOP/s of a thread by CPU from the user's table: {"CPU": {"bf16": 400}}."""

    def form(document: Any) -> dict[str, float]:
        rates = {cpu: float(of_cpu.get(precision, 0)) for cpu, of_cpu in document.items()}
        return {cpu: rate for cpu, rate in rates.items() if 0 < rate < float("inf")}

    return read_state(state_dir() / RATES, form) or {}


def past_runs() -> list[PastRun]:
    """Return the training runs that this control node followed to their ends, the newest first.

    Skip damaged records.
    """
    runs: list[PastRun] = []
    started: list[tuple[float, str]] = []
    for run in recorded_runs():
        record = read_record(run) or {}
        if record.get("kind") == "train":
            started.append((float(record.get("started", 0)), run))
    for _, run in sorted(started, reverse=True)[:MOST_RUNS]:
        try:
            files = ended_here(run)
            past = past_run(run, files.record, history_of(files.events)) if files else None
        except (FtclusterError, KeyError, TypeError, ValueError):  # written by another version
            continue
        runs += [past] if past else []
    return runs


def past_run(run: str, record: Mapping[str, Any], history: History) -> PastRun | None:
    """Return a run's speed; None if the run is too short or did not follow its plan.

    Raises:
        KeyError, TypeError, ValueError: the record has the format of another version.
    """
    intervals = history.intervals
    whole = totals(intervals[1:] or intervals)  # the first interval contains the warm-up
    plan, recipe = record["plan"], record["recipe"]
    cpus = {host["name"]: host["cpu_model"] for host in record["facts"]}
    ranks = tuple(
        (cpus[host["name"]], rank["threads"])
        for host in plan["hosts"]
        for rank in host["placement"]
    )
    if not whole or not whole.steps or not whole.seconds or len(whole.ranks) != len(ranks):
        return None
    batch = sum(rank["samples"] for host in plan["hosts"] for rank in host["placement"])
    parts = step_parts(whole, history.products)
    return PastRun(
        run,
        {**recipe, "batch_size": batch},
        ranks,
        how_of(plan["precision"], plan["ipex"], plan["shard_optimizer"], recipe),
        whole.steps * batch / whole.seconds,
        history.start["train_samples"],
        whole.tokens / (whole.steps * batch),
        history.products.get("weights", 0),
        tuple(history.products.get("gflops", ())),
        parts.limit_share or 0.0,
    )
