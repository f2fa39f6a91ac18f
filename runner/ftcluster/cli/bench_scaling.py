"""`ftcluster bench scaling [RECIPE]`: the same training on 1, 2, 4, ... hosts."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcluster.ansible.options import CONNECTION, add_options, ask_passwords
from ftcluster.benchmark.modes import mode_of, overrides, read_modes
from ftcluster.benchmark.scaling import Point, document, doubled, lines, measure, share
from ftcluster.cli.arguments import add_output, add_sharing, at_least, not_empty, print_result
from ftcluster.cli.help import example_lines
from ftcluster.cli.recipe_words import split_words
from ftcluster.cli.run_options import add_cluster, cluster_of, reach_of
from ftcluster.cli.train import prepare_run, prices
from ftcluster.cluster.price import price_of
from ftcluster.cluster.saved import Cluster
from ftcluster.launch.place import place_of
from ftcluster.launch.run import host_of
from ftcluster.launch.runs import clean_runs
from ftcluster.launch.training_run import TrainingRun, train
from ftcluster.paths import write_atomically
from ftcluster.progress.view import make_view
from ftcluster.recipe.recipe import known_recipes
from ftcluster.text.plural import counted

STEPS = 30


def add_parser(kinds: Any) -> None:
    """Add the command to the parser of `bench`."""
    parser = kinds.add_parser(
        "scaling",
        help="the speed of a training on 1, 2, 4, ... hosts",
        description="Trains some steps on 1, 2, 4, ... hosts, or with as many ranks on a single "
        "host, with the same number of samples a rank, and compares the samples per second. "
        "A model that is fitted to them predicts up to 256 hosts.",
        usage="ftcluster bench scaling [RECIPE] [key=value ...] [options]",
    )
    parser.add_argument(
        "words", nargs="*", metavar="RECIPE or key=value", help="as in train (default: quickstart)"
    )
    parser.add_argument("--data", type=not_empty, metavar="DIR", help="as in train")
    parser.add_argument("--model", type=not_empty, metavar="DIR", help="as in train")
    parser.add_argument("--nodes", type=at_least(1), metavar="N", help="up to N hosts")
    parser.add_argument(
        "--ranks-per-host", type=at_least(1), metavar="N", help="on a single host, up to N ranks"
    )
    parser.add_argument(
        "--steps",
        type=at_least(3),
        default=STEPS,
        metavar="N",
        help=f"of each training, the first third to warm up (default: {STEPS}); at least three "
        "exchanges of local steps",
    )
    parser.add_argument(
        "--modes",
        type=str,
        metavar="NAMES",
        help="how ranks exchange what they learn: such as impi-bf16-whole,gloo-fp32-sharded, or "
        "all (default: the plan's choice)",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write a picture")
    add_sharing(parser)
    add_cluster(parser)
    add_output(parser, verbose="print plain lines instead of the live view")
    add_options(parser, ("--extra-vars", *CONNECTION))
    parser.set_defaults(run=run, parser=parser, takes_recipe=True)
    parser.more = example_lines("bench scaling", known_recipes())


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    split_words(options.words)  # wrong usage first
    modes = [overrides(mode) for mode in read_modes(options.modes)] if options.modes else [[]]
    with ask_passwords(vars(options)) as passwords:
        cluster = cluster_of(options, passwords)
        reach = (*cluster.options, *reach_of(options, passwords))
        runs = list(trainings(options, modes, cluster))
        points = []
        for one in runs:
            view = make_view(options.verbose)
            hosts, ranks = len(one.plan.hosts), one.plan.world_size
            view.say(f"{counted(hosts, 'host')}, {counted(ranks, 'rank')}")
            events: list[dict[str, Any]] = []
            train(one, view, reach, on_event=events.append)
            points.append(measured(one, events))
        clean_runs(replace(place_of(cluster), options=reach), tuple(one.id for one in runs))
    recipe, stack = runs[0].recipe.name, cluster.facts.head.stack
    result = document(recipe, stack, options.steps, points)
    if options.svg:
        write_atomically(options.svg, picture_of(result), mode=0o644)
    print_result(options, result, "\n".join(lines(result)))
    return 0


def picture_of(result: Mapping[str, Any]) -> str:
    """What `--svg` draws: the efficiency that was measured, and what is predicted."""
    from ftcluster.report.charts import efficiency  # takes a second to load
    from ftcluster.report.svg import svg_of

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
    last = [row for row in measured if row["hosts"] == points[-1]["hosts"]]  # lines begin there
    title = f"{result['recipe']}: efficiency by number of hosts"
    chart = efficiency(measured, [*last, *predicted], result["references"], title)
    return svg_of(chart, title)


def trainings(
    options: argparse.Namespace, modes: Sequence[Sequence[str]], cluster: Cluster
) -> Iterator[TrainingRun]:
    """The trainings, from one host on, or from one rank of a single host on.

    Args:
        modes: fields of the recipe for each mode; the first training has none, as it sends nothing.

    Raises:
        FtclusterError: see `prepare_run`.
    """

    def prepared(words: Sequence[str], nodes: int | None, ranks: int | None) -> TrainingRun:
        folders = (options.data, options.model)
        every = [*options.words, *words]
        return prepare_run(every, cluster, *folders, nodes, 0, ranks, use_tuning=False)

    whole = prepared((), options.nodes, options.ranks_per_host)
    hosts, ranks = len(whole.plan.hosts), whole.plan.world_size
    samples = share(whole.recipe.batch_size, ranks)
    several = hosts > 1
    for count in doubled(hosts if several else ranks):
        nodes, of_host = (count, options.ranks_per_host) if several else (1, count)
        world = prepared((), nodes, of_host).plan.world_size
        words = f"batch_size={world * samples}"
        sharing = {"wait": options.wait, "share_hosts": options.share_hosts}
        for mode in modes if count > 1 else ([],):
            one = prepared((words, *mode, *short_run(options.steps)), nodes, of_host)
            if one.recipe.training.sync == "local":
                steps = max(options.steps, 3 * one.recipe.training.sync_steps)
                one = prepared((words, *mode, *short_run(steps)), nodes, of_host)
            yield replace(one, launch=replace(one.launch, **sharing))


def short_run(steps: int) -> list[str]:
    """Fields of a recipe for so many steps without evaluation.

    The first third is a warm-up: memory is new, and the ranks compare their weights.
    """
    left_out = (
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
        *(f"training.{name}=null" for name in left_out),
    ]


def measured(run: TrainingRun, events: Sequence[dict[str, Any]]) -> Point:
    """A point of the result."""
    plan = run.plan
    threads = sum(rank.threads for host in plan.hosts for rank in host.placement)
    found = measure([event for event in events if event["event"] == "communication"])
    start = next(event for event in events if event["event"] == "start")
    waited = found["waited"]
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
        price=price_of(prices(run))[0],
        **found,
    )
