"""Measure training speed on 1, 2, 4, ... hosts, or with 1, 2, 4, ... ranks on a single host."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ftcluster.benchmark.modes import mode_of, overrides, read_modes
from ftcluster.benchmark.scaling import Point, document, doubled, lines, measure, share
from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.price import price_of
from ftcluster.cluster.saved import Cluster
from ftcluster.launch import training_run
from ftcluster.launch.run import host_of
from ftcluster.launch.run_hosts import run_hosts_of
from ftcluster.launch.runs import clean_runs
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.result import Result
from ftcluster.operations.train.head_access import ensure_head_access
from ftcluster.operations.train.prepare import LaunchOptions, RecipeRequest
from ftcluster.paths import SHARED_FILE, write_atomically
from ftcluster.progress.view import View
from ftcluster.text.plural import counted

STEPS = 30


@dataclass(frozen=True)
class ScalingRequest(RecipeRequest):
    """A recipe to measure the training speed of, on up to `nodes` hosts or `ranks_per_host` ranks.

    Attributes:
        steps: number of steps of each training run; the first third of the steps is a warm-up.
        modes: ways in which ranks exchange gradients, such as `impi-bf16-whole`, or `all`; "" for
            the plan's choice.
        svg: path of the chart to write; None for no chart.
    """

    steps: int = STEPS
    modes: str = ""
    svg: Path | None = None
    launch: LaunchOptions = field(default_factory=LaunchOptions)


def bench_scaling(request: ScalingRequest, view: View) -> Result:
    """Train a few steps on each number of hosts or ranks, and compare the samples per second.

    Raises:
        ClusterChanged: the cluster has changed since the run was planned. `again`
            retries the operation.
        FtclusterError: the request is not valid, or a run failed.
    """
    modes = [overrides(mode) for mode in read_modes(request.modes)] if request.modes else [[]]
    whole = cluster_of(request.connection, view)
    cluster = with_hosts(whole, request.hosts)
    connection_options = request.connection.to(cluster)
    runs, points = list(_trainings(request, modes, whole)), []
    ensure_head_access(runs[-1], connection_options, view)  # this run has the most hosts
    for run in runs:
        hosts, ranks = len(run.plan.hosts), run.plan.world_size
        view.say(f"{counted(hosts, 'host')}, {counted(ranks, 'rank')}")
        events: list[dict[str, Any]] = []
        training_run.train(run, view, connection_options, on_event=events.append)
        points.append(_measured(run, events))
    clean_runs(
        replace(run_hosts_of(cluster), options=connection_options), tuple(run.id for run in runs)
    )
    recipe, stack = runs[0].recipe.name, cluster.facts.head.stack
    result = document(recipe, stack, request.steps, points)
    if request.svg:
        write_atomically(request.svg, picture_of(result), mode=SHARED_FILE)
    return Result(result, tuple(lines(result)))


def picture_of(result: Mapping[str, Any]) -> str:
    """Return the chart for `--svg`: the measured and the predicted efficiency."""
    from ftcluster.report.charts import efficiency, svg_of  # takes a second to load

    points, model = result["points"], result["model"]
    modes = dict.fromkeys(point["mode"] for point in points if point["mode"])
    measured = [
        {"mode": mode, "hosts": point["hosts"], "efficiency": point["efficiency"]}
        for mode in modes
        for point in points
        if point["mode"] in (mode, None)
    ]
    predicted = [
        {"mode": mode, "hosts": row["hosts"], "efficiency": share}
        for row in (model["predicted"] if model else ())
        for mode, share in row["efficiency"].items()
    ]
    last = [row for row in measured if row["hosts"] == points[-1]["hosts"]]  # predictions follow
    title = f"{result['recipe']}: efficiency by number of hosts"
    chart = efficiency(measured, [*last, *predicted], result["references"], title)
    return svg_of(chart, title)


def _trainings(
    request: ScalingRequest, modes: Sequence[Sequence[str]], cluster: Cluster
) -> Iterator[TrainingRun]:
    """Yield the training runs. The first run uses one host, or one rank on a single host.

    Args:
        modes: recipe fields that select each mode. The first run does not set these fields,
            because a single host or rank exchanges no gradients.

    Raises:
        FtclusterError: a run cannot be prepared, see `RecipeRequest.prepared`.
    """

    def prepared(fields: Sequence[str], nodes: int | None, ranks: int | None) -> TrainingRun:
        of_run = replace(request, chosen=tuple(fields), nodes=nodes, ranks_per_host=ranks)
        return of_run.prepared(cluster, use_tuning=False)

    whole = prepared((), request.nodes, request.ranks_per_host)
    hosts, ranks = len(whole.plan.hosts), whole.plan.world_size
    samples = share(whole.recipe.batch_size, ranks)
    several = hosts > 1
    for count in doubled(hosts if several else ranks):
        nodes, of_host = (count, request.ranks_per_host) if several else (1, count)
        world = prepared((), nodes, of_host).plan.world_size
        batch = f"batch_size={world * samples}"
        for mode in modes if count > 1 else ([],):
            run = prepared((batch, *mode, *short_run(request.steps)), nodes, of_host)
            if run.recipe.training.sync == "local":
                steps = max(request.steps, 3 * run.recipe.training.sync_steps)
                run = prepared((batch, *mode, *short_run(steps)), nodes, of_host)
            yield request.launch.applied_to(run)


def short_run(steps: int) -> list[str]:
    """Return the fields of a recipe that make it train `steps` steps without evaluation.

    The first third of the steps is a warm-up: the ranks allocate memory and compare their weights.
    """
    unset = (
        "eval_steps", "save_steps", "save_total_limit", "metric_for_best_model",
        "greater_is_better", "report_to", "run_name",
    )  # fmt: skip
    return [
        f"training.max_steps={steps}",
        "training.logging_strategy=steps",
        f"training.logging_steps={steps // 3}",
        "training.logging_first_step=false",
        "training.eval_strategy=no",
        "training.eval_on_start=false",
        "training.save_strategy=no",
        "training.load_best_model_at_end=false",
        *(f"training.{name}=null" for name in unset),
    ]


def _measured(run: TrainingRun, events: Sequence[dict[str, Any]]) -> Point:
    """Return the measured speed of one training run, as a point of the result."""
    plan = run.plan
    threads = sum(rank.threads for host in plan.hosts for rank in host.placement)
    measured = measure([event for event in events if event["event"] == "communication"])
    start = next(event for event in events if event["event"] == "start")
    waited = measured["waited"]
    return Point(
        run.id,
        mode_of(run.recipe, plan),
        len(plan.hosts),
        plan.world_size,
        threads,
        run.recipe.batch_size,
        parameters=start["parameters"],
        slowest=host_of(plan, waited.index(min(waited))),
        epoch_samples=start["train_samples"],
        price=price_of(run.prices)[0],
        **measured,
    )
