"""`ftcluster train [RECIPE] [key=value ...]`: trains a model on the cluster."""

import argparse
import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import HOSTS_VARIABLE, pattern_of
from ftcluster.ansible.options import CONNECTION, add_options, ask_passwords
from ftcluster.ansible.playbooks import Mesh
from ftcluster.cli.arguments import (
    add_commands,
    add_detach,
    add_dry_run,
    add_grace,
    add_launch,
    add_output,
    add_restarts,
    add_sharing,
    launch_options,
    not_empty,
    print_detached,
    print_result,
)
from ftcluster.cli.recipe_words import (
    DEFAULT_RECIPE,
    on_the_hosts,
    split_words,
    trained_recipe,
    training_recipe,
)
from ftcluster.cli.run_options import add_cluster, cluster_of, reach_of
from ftcluster.cli.slurm_job import earlier_run, job_of, requeued
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.price import epoch_document, price_document, price_of
from ftcluster.cluster.saved import Cluster
from ftcluster.cluster.slurm import cluster_of_job
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.follow import RECONNECT_LIMIT_SECONDS, attach, new_run_id
from ftcluster.launch.hub_token import add_option, find_token
from ftcluster.launch.mpirun import render
from ftcluster.launch.place import place_of
from ftcluster.launch.preview import as_commands, as_document, as_lines, headline
from ftcluster.launch.runs import find_job, find_run
from ftcluster.launch.training_run import HeadLost, TrainingRun, train
from ftcluster.planning.drained import BACK, with_drained
from ftcluster.planning.memory import ModelSize
from ftcluster.planning.model_size import cached_size, model_size, size_from_scratch
from ftcluster.planning.plan import Decision, LaunchPlan, first_hosts
from ftcluster.planning.spares import next_hosts, plan_with_spares
from ftcluster.planning.tuned import UNTUNED, choose_tuned
from ftcluster.progress.format import duration, metrics
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View, make_view
from ftcluster.provision.stages import run_stages
from ftcluster.recipe.data_columns import find_columns
from ftcluster.recipe.inputs import check_inputs, on_the_hub
from ftcluster.recipe.recipe import find_recipe
from ftcluster.report.cost import Shape, cost_line, described
from ftcluster.report.epoch_time import PastRun, batch_of, epoch_time, past_runs
from ftcluster.stacks.catalog import load_stacks
from ftcluster.text.plural import counted
from ftcluster.text.terminal import print_lines
from ftcluster_common.job import Purpose
from ftcluster_common.recipe import CausalLm, Recipe

AS_OF = "this control node's copy; each launch asks the head"
HEAD_SECONDS = 120.0  # it may be rebooting


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a model on the cluster",
        description="Trains the model of a recipe on the cluster that was set up last.",
        usage="ftcluster train [RECIPE] [key=value ...] [options]",
    )
    add_training(parser)
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="continue a run from its newest checkpoint or snapshot, as a new run, on the hosts "
        "that answer; its id, or how that begins",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="if the head does not answer for 2 minutes, continue the run on the other hosts",
    )
    add_grace(parser)
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="in a Slurm job: when a signal stops the training, as shortly before the time limit, "
        "have Slurm start the job again, which continues it",
    )
    add_detach(parser)
    add_running(parser)
    parser.set_defaults(run=run)


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `train` and `plan` have in common."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE or key=value",
        help=f"a known recipe or a YAML file (default: {DEFAULT_RECIPE}); any field of it, such as "
        "training.seed=7",
    )
    parser.add_argument(
        "--data",
        type=not_empty,
        metavar="PATH",
        help="a file or a folder with CSV, TSV, JSON, JSONL, Parquet or text, or a Hub name",
    )
    parser.add_argument(
        "--model", type=not_empty, metavar="DIR", help="a model folder, or a Hub name"
    )
    parser.add_argument(
        "--sync",
        choices=("step", "local"),
        help="local, for slow networks: hosts take steps of their own and exchange what they have "
        "learned every 32 steps (training.sync_steps), which gives another model (default: step)",
    )
    add_launch(parser)
    parser.set_defaults(takes_recipe=True)


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all commands have that run a recipe on the cluster."""
    add_option(parser)
    add_cluster(parser)
    add_restarts(parser, default=3)
    add_sharing(parser)
    add_dry_run(parser)
    add_commands(parser)
    add_output(parser, verbose="print plain lines instead of the live view")
    add_options(parser, ("--extra-vars", *CONNECTION))


def recipe_words(options: argparse.Namespace) -> list[str]:
    """The recipe and its overrides that the command line asks for."""
    return [*([f"training.sync={options.sync}"] if options.sync else []), *options.words]


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.resume and (recipe_words(options) or options.data or options.model):
        raise UsageError(
            "--resume continues with the run's own recipe, model and data",
            "with others: a new run from a checkpoint, training.resume_from_checkpoint=DIR, or "
            "from its weights only, --model DIR",
        )
    find_recipe(split_words(options.words)[0])  # before anything that takes time
    job = job_of(options)
    with ask_passwords(vars(options)) as passwords:
        cluster = cluster_of_job(job) if job else cluster_of(options, passwords)
        reach = (*cluster.options, *reach_of(options, passwords))
        must_resume = bool(options.resume)  # else a new head may start from the beginning
        if job and not options.resume:
            options.resume = earlier_run(job)
        prepared = prepare(options, cluster, reach, must_resume)
        if options.dry_run:
            show_plan(prepared, options)
            return 0
        view = make_view(options.verbose)
        for line in headline_of(prepared):
            view.say(line)
        progress = done_before(options, cluster) if job and not must_resume else None
        with requeued(job) if job and options.requeue else contextlib.nullcontext():
            progress = progress or carry_on(prepared, options, cluster, reach, must_resume)
    if progress.state == "running":
        print_detached(options, progress.run)
    else:
        print_result(options, result_document(progress, prepared), summary(progress, prepared))
    return 0


def done_before(options: argparse.Namespace, cluster: Cluster) -> RunProgress | None:
    """The result of the run that a requeued Slurm job would continue, where that was done."""
    place = place_of(cluster)
    if not options.resume or find_run(place, options.resume).state != "done":
        return None
    return attach(place, options.resume, make_view(options.verbose)).progress


def carry_on(
    run: TrainingRun,
    options: argparse.Namespace,
    cluster: Cluster,
    reach: Sequence[str],
    must_resume: bool,
) -> RunProgress:
    """Train, with --watch on a host that is left when the head is lost.

    Raises:
        HeadLost: it was lost, and --watch is not given, or it was lost too often.
        FtclusterError, Interrupted: see `train`.
    """
    limit = HEAD_SECONDS if options.watch else RECONNECT_LIMIT_SECONDS
    token = find_token() if options.hf_token else ""
    left = options.max_restarts if options.watch else 0
    while True:
        lead(run, options, cluster, reach)
        view = make_view(options.verbose)
        say_notes(run, view)
        try:
            launched = replace(run, hub_token=token, must_resume=must_resume)
            return train(launched, view, tuple(reach), options.detach, limit)
        except HeadLost as error:
            if not left:
                raise
            view.say(f"{error.message}; continuing on the other hosts")
        left -= 1
        options.resume, options.nodes, options.spares = run.id, None, 0  # they may be used up
        run = prepare(options, cluster, reach, must_resume)


def lead(
    run: TrainingRun, options: argparse.Namespace, cluster: Cluster, reach: Sequence[str]
) -> None:
    """Let the head of a run start ranks on its other hosts, where setup has not done so."""
    names = [host.name for host in run.plan.prepared]
    usual = not options.inventories and names[0] == cluster.facts.head.name
    if run.resume and len(names) > 1 and not usual:
        hosts = ("--extra-vars", f"{HOSTS_VARIABLE}={pattern_of(names)}")
        run_stages(Mesh(), cluster.inventories, (*reach, *hosts), make_view(options.verbose))


def prepare(
    options: argparse.Namespace, cluster: Cluster, reach: Sequence[str], must_resume: bool
) -> TrainingRun:
    """Prepare the run that the command line asks for."""
    shape = (options.nodes, options.spares, options.ranks_per_host)
    if options.resume:  # on a host that is left, where the head is lost
        prepared = resume_run(options.resume, *shape, cluster, reach, must_resume)
    else:
        words = recipe_words(options)
        prepared = prepare_run(words, cluster, options.data, options.model, *shape)
    given = {**launch_options(options), "grace_seconds": options.grace_seconds}
    return replace(prepared, launch=replace(prepared.launch, **given))


def prepare_run(
    words: list[str],
    cluster: Cluster,
    data: str | None = None,
    model: str | None = None,
    nodes: int | None = None,
    spares: int = 0,
    ranks_per_host: int | None = None,
    purpose: Purpose = "train",
    use_tuning: bool = True,
) -> TrainingRun:
    """Prepare a run without changing anything.

    Args:
        words: a recipe, a known one or a file, and `key=value` of its fields.
        data, model: a folder or a name, instead of the recipe's.
        nodes: number of hosts with ranks, the head first; default: all.
        spares: number of hosts after these that may take the place of a lost one.
        ranks_per_host: default: the plan decides.
        purpose: whether the model is trained, evaluated or predicts.
        use_tuning: whether a training has the settings that `ftcluster tune` has found for it.

    Raises:
        UsageError: there are several recipes, or too few hosts for spares.
        FtclusterError: the recipe, its folders, the cluster or the plan are not valid.
    """
    trains = purpose == "train"
    remembered: tuple[str, ...] = ()
    if trains:
        recipe = training_recipe(words, data, model)
    else:
        recipe, remembered = trained_recipe(words, data, model or "", purpose)
    check_inputs(recipe, purpose)
    columns = find_columns(recipe, purpose)
    facts = first_hosts(cluster.usable, nodes)
    further = next_hosts(cluster.usable, nodes, spares)
    size = _size_of(recipe)
    recipe, folders = on_the_hosts(recipe, facts)
    tuned, tuning, stacks = UNTUNED, None, load_stacks()
    if trains and use_tuning:
        asked = as_tuned(recipe, ranks_per_host)
        tuned, tuning = choose_tuned(cluster.tunings, asked, facts.hosts)
    recipe, shape = tuned.applied_to(recipe), (ranks_per_host, size, trains, tuned)
    decided = plan_with_spares(facts, further, recipe, stacks, *shape)
    recipe, notes = with_batch_of(recipe, decided) if trains else (recipe, remembered)
    if tuning:
        decided = decided.with_decision(Decision("tuning", *tuning))
    decided = with_drained(decided, cluster)
    if "batch_size" in tuned.settings:
        notes = (*notes, f"batch_size={recipe.batch_size}: {tuned.why} --batch")
    run_id = new_run_id(recipe.name)
    launch = render(decided, run_id, slurm_job=cluster.slurm_job)
    return TrainingRun(run_id, cluster, decided, launch, recipe, folders, columns, notes, purpose)


def as_tuned(recipe: Recipe, ranks_per_host: int | None) -> Recipe:
    """The recipe on the hosts, as tunings know it."""
    return replace(recipe, ranks_per_host=ranks_per_host or recipe.ranks_per_host)


def with_batch_of(recipe: Recipe, plan: LaunchPlan) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with the plan's batch where it has that of a rank only, and a note about it."""
    if recipe.training.per_device_train_batch_size is None:
        return recipe, ()
    samples = sum(rank.samples for host in plan.hosts for rank in host.placement)
    training = replace(recipe.training, per_device_train_batch_size=None)
    [why] = [one.why for one in plan.decisions if one.what == "batch"]
    return replace(recipe, batch_size=samples, training=training), (f"batch_size={samples}: {why}",)


def resume_run(
    run: str,
    nodes: int | None,
    spares: int,
    ranks_per_host: int | None,
    cluster: Cluster,
    reach: Sequence[str],
    must_resume: bool,
) -> TrainingRun:
    """Prepare a run that continues another one, on the hosts that answer.

    Args:
        run: the other one's id, or how it begins.
        nodes: number of hosts with ranks, the head first; default: those of the other run.
        spares: number of hosts after these that may take the place of a lost one.
        ranks_per_host: default: the plan decides.
        reach: arguments of ansible-playbook that say how to reach the hosts.
        must_resume: whether it is an error that the other run has saved nothing.

    Raises:
        FtclusterError: there is no such run, no host answers, it has saved nothing, IPEX optimizes
            its model, or the plan is not valid.
    """
    found = find_job(replace(place_of(cluster), options=tuple(reach)), run)
    if must_resume and not found.saved and not found.recipe.training.resume_from_checkpoint:
        raise FtclusterError(
            f"run {found.run} has no checkpoint or snapshot on {', '.join(found.hosts)}",
            f"train again from the beginning; what it ended with: ftcluster logs {found.run}",
        )
    hosts = cluster.facts
    if not cluster.slurm_job:  # the first node answers for all
        facts_of = {host.name: host for host in hosts.hosts}
        names = [name for name in found.hosts if name not in cluster.drained]
        if not names:
            others = ", ".join(found.hosts)
            raise FtclusterError(f"every host that answers is drained: {others}", BACK)
        hosts = replace(hosts, hosts=tuple(facts_of[name] for name in names))
        nodes = nodes or min(found.nodes, len(names))
    cluster = replace(cluster, facts=hosts)
    facts, further = first_hosts(hosts, nodes), next_hosts(hosts, nodes, spares)
    size = _size_of(found.recipe)
    stacks = load_stacks()
    decided = plan_with_spares(facts, further, found.recipe, stacks, ranks_per_host, size)
    decided = with_drained(decided, cluster)
    if found.ipex or decided.ipex:
        raise FtclusterError(
            f"run {found.run} cannot be resumed: IPEX keeps its own copies of the weights",
            "train again from the beginning; with training.use_ipex=false a run can be resumed",
        )
    run_id, resumed = new_run_id(found.recipe.name), (found.run, *found.resume)
    launch = render(decided, run_id, slurm_job=cluster.slurm_job)
    return TrainingRun(run_id, cluster, decided, launch, found.recipe, resume=resumed)


def _size_of(recipe: Recipe) -> ModelSize | None:
    if not recipe.from_scratch:
        return model_size(Path(recipe.model)) or (
            cached_size(recipe.model) if on_the_hub(recipe.model) else None
        )
    vocabulary = recipe.options.vocab_size if isinstance(recipe.options, CausalLm) else None
    return size_from_scratch(recipe.model, recipe.config_overrides, vocabulary)


def say_notes(run: TrainingRun, view: View) -> None:
    """Show what a user should know before a run begins."""
    for note in run.notes:
        view.say(f"note: {note}")


def headline_of(run: TrainingRun) -> list[str]:
    """What is trained, how, and where."""
    return headline(run.recipe, run.plan, run.purpose, run.folders, run.columns)


def show_plan(run: TrainingRun, options: argparse.Namespace) -> None:
    """Print the plan."""
    if options.json:
        names = {host.name for host in run.plan.prepared}
        hosts = tuple(host for host in run.cluster.facts.hosts if host.name in names)
        facts = ClusterFacts(hosts)
        more = shape_of(run, past_runs()).epoch() if run.purpose == "train" else {}
        print(
            json.dumps(
                as_document(run.id, run.recipe, run.columns, run.plan, run.launch, facts, more)
            )
        )
        return
    head = headline_of(run)
    epoch = shape_of(run, past_runs()).reasons() if run.purpose == "train" else ()
    as_of = [("cluster", f"as of {run.cluster.as_of}", AS_OF)] if run.cluster.as_of else []
    lines = as_lines(head, run.plan, run.folders, [*epoch, *as_of])
    if options.commands:
        print(as_commands(lines, run.launch, run.plan, run.job))
    else:
        print_lines(lines)


def shape_of(run: TrainingRun, runs: Sequence[PastRun], name: str = "") -> Shape:
    """A planned training with the time and the cost of an epoch.

    Args:
        runs: trainings that were measured, the newest first.
        name: see Shape.
    """
    hosts = run.cluster.facts.hosts
    fields = json.loads(json.dumps(asdict(run.recipe)))  # as a record has them
    planned = {host.name for host in run.plan.hosts}
    price, why = price_of(prices(run))
    return Shape(
        name,
        described([(host.cpu_model, host.cores) for host in hosts if host.name in planned]),
        run.plan.world_size,
        batch_of(run.plan),
        run.plan.precision,
        epoch_time(run.plan, run.recipe, fields, hosts, runs),
        price,
        why,
    )


def prices(run: TrainingRun) -> list[tuple[str, str]]:
    """The hosts that a run is prepared on, with their prices."""
    names = {host.name for host in run.plan.prepared}
    hosts = run.cluster.facts.hosts
    return [(host.name, host.price_per_hour) for host in hosts if host.name in names]


def result_document(progress: RunProgress, run: TrainingRun) -> dict[str, Any]:
    """The result of `train --json`."""
    start = progress.start
    price, _ = price_of(prices(run))
    return {
        **progress.document(),
        "price": price_document(price),
        "cost": round(price.cost(progress.seconds), 6) if price else None,
        "epoch": epoch_document(progress.epoch_seconds, price),
        "train_seconds": progress.result["train_seconds"],
        "steps": progress.step.get("step", start["steps"]),
        "seed": run.recipe.training.seed,
        "precision": start["precision"],
        "ipex": start["ipex"],
    }


def summary(progress: RunProgress, run: TrainingRun) -> str:
    """The result as text: metrics, speed and the model's path."""
    result = progress.result
    head = run.cluster.facts.head
    count = len(run.plan.hosts)
    hosts = f" on {count} hosts" if count > 1 else ""
    where = "" if head.connection == "local" else f"{head.name}:"
    price, why = price_of(prices(run))
    cost = [f"cost: not available ({why})"] if why else []
    if price:
        cost = [cost_line(progress.seconds, progress.epoch_seconds, price, len(run.plan.prepared))]
    return "\n".join(
        (
            metrics(result["metrics"]),
            f"{result['samples_per_second']:.1f} samples per second on "
            f"{counted(result['world_size'], 'rank')}{hosts}, "
            f"{duration(progress.seconds)} in all",
            *cost,
            f"model: {where}{result['model']}",
        )
    )
