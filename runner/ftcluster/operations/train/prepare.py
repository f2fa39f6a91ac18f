"""Prepare a training run, an evaluation or a prediction: its recipe, its plan and its launch."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.price import price_of
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import UsageError
from ftcluster.launch.environment import with_user_variables
from ftcluster.launch.follow import new_run_id
from ftcluster.launch.kept_options import KeptOptions
from ftcluster.launch.mpirun import render
from ftcluster.launch.notify import read_notify
from ftcluster.launch.preview import headline
from ftcluster.launch.run import ClusterRun
from ftcluster.launch.tags import read_tags
from ftcluster.launch.training_run import TrainingRun
from ftcluster.launch.user_env import read_env
from ftcluster.operations.connection import Connection
from ftcluster.operations.train.recipe_words import (
    DataWords,
    on_the_hosts,
    split_words,
    trained_recipe,
    training_recipe,
)
from ftcluster.planning.memory import ModelSize
from ftcluster.planning.model_size import cached_size, model_size, size_from_scratch
from ftcluster.planning.plan import Decision, LaunchPlan, first_hosts
from ftcluster.planning.spares import next_hosts, plan_with_spares
from ftcluster.planning.tuned import UNTUNED, choose_tuned
from ftcluster.progress.view import View
from ftcluster.recipe.data_columns import file_notes, find_columns
from ftcluster.recipe.inputs import check_inputs, hub_notes, on_the_hub
from ftcluster.recipe.recipe import find_recipe
from ftcluster.recipe.saved_adapters import adapter_notes
from ftcluster.report.cost import Shape
from ftcluster.report.epoch_time import PastRun, batch_of, epoch_time
from ftcluster.stacks.catalog import load_stacks
from ftcluster.text.host_names import described
from ftcluster.user_script.own_code import read_code, reported
from ftcluster_common.protocol.job import PREDICT, Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.user_code import UserCode

AnyRun = TypeVar("AnyRun", bound=ClusterRun)


@dataclass(frozen=True)
class RecipeRequest:
    """A recipe to run, and the requested hosts and ranks.

    Attributes:
        words: name or file of a recipe, and `key=value` arguments for its fields.
        data: folder or name that replaces the recipe's data; or a tuple of data sets, each a path
            or an entry as in a recipe; None for the recipe's data.
        model: folder or name that replaces the recipe's model; None for the recipe's model.
        hosts: names of the hosts to use; if empty, all hosts of the cluster that are not drained.
        nodes: number of hosts that get ranks, including the head; None for all hosts.
        spares: number of additional hosts that may replace a lost host; None for the default.
        ranks_per_host: number of ranks on each host; None if the plan decides.
        run_name: beginning of the run's id; None for the recipe's name.
        connection: the cluster, and the arguments for reaching its hosts.
        chosen: `key=value` arguments from a search (`sweep`, `tune`); they override `words`.
        task: path of the user's Python file that defines the recipe's task; "" for none.
        metrics: path of the user's Python file that computes further metrics; "" for none.
    """

    words: tuple[str, ...] = ()
    data: DataWords = None
    model: str | None = None
    nodes: int | None = None
    spares: int | None = None
    ranks_per_host: int | None = None
    run_name: str | None = None
    connection: Connection = field(default_factory=Connection)
    chosen: tuple[str, ...] = ()
    task: str = ""
    metrics: str = ""
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that one recipe is named, and that it exists.

        Raises:
            UsageError: several recipes are named, or the recipe is unknown.
        """
        find_recipe(split_words(self.words)[0])

    def user_code(self) -> UserCode:
        """Read the user's task and metrics files, and register their task for recipes.

        Raises:
            UsageError: a file cannot be used; the message has the reason, the file and the line.
        """
        return read_code(self.task, self.metrics)

    def prepared(
        self, cluster: Cluster, purpose: Purpose = "train", use_tuning: bool = True
    ) -> TrainingRun:
        """Prepare the requested run without changing anything.

        Args:
            purpose: the run's purpose: training, evaluation or prediction.
            use_tuning: True if training uses the settings that `ftcluster tune` has saved for it.

        Raises:
            UsageError: there are too few hosts for the requested spares, or `hosts` names a host
                that cannot be used.
            FtclusterError: the recipe, its folders, the cluster or the plan are not valid.
        """
        cluster = with_hosts(cluster, self.hosts)
        code = self.user_code()
        with reported():
            return self._prepared(cluster, code, purpose, use_tuning)

    def _prepared(
        self, cluster: Cluster, code: UserCode, purpose: Purpose, use_tuning: bool
    ) -> TrainingRun:
        trains = purpose == "train"
        # the recipe has four forms: as requested (`requested`), with the hosts' folders
        # (`placed`), with the settings of `ftcluster tune` (`adjusted`), and with the plan's batch
        # size (`launched`)
        remembered: tuple[str, ...] = ()
        if trains:
            requested = training_recipe(
                self.words, self.data, self.model, chosen=self.chosen, code=code
            )
        else:
            requested, remembered = trained_recipe(
                self.words, self.data, self.model or "", purpose, code
            )
        if purpose == PREDICT and len(requested.data_sets) > 1:
            raise UsageError(
                f"predict reads one data set, got {len(requested.data_sets)}",
                "pass one data set: --data PATH",
            )
        check_inputs(requested, purpose)
        columns = tuple(find_columns(part, purpose) for part in requested.by_set())
        encodings = file_notes(requested, purpose)
        facts = first_hosts(cluster.usable, self.nodes, cluster.absent)
        further = next_hosts(cluster.usable, self.nodes, self.spares or 0, cluster.absent)
        size = size_of(requested)
        placed, folders = on_the_hosts(requested, facts)
        tuned, tuning, stacks = UNTUNED, None, load_stacks()
        if trains and use_tuning:
            wanted = as_tuned(placed, self.ranks_per_host)
            tuned, tuning = choose_tuned(cluster.tunings, wanted, facts.hosts)
        shape = (self.ranks_per_host, size, trains, tuned)
        adjusted = tuned.applied_to(placed)
        decided = plan_with_spares(
            facts, further, adjusted, stacks, *shape, drained=cluster.drained
        )
        launched, notes = with_batch_of(adjusted, decided) if trains else (adjusted, remembered)
        if tuning:
            decided = decided.with_decision(Decision("tuning", *tuning))
        if "batch_size" in tuned.settings:
            notes = (*notes, f"batch_size={launched.batch_size}: {tuned.why} --batch")
        adapters = adapter_notes(requested) if trains else ()
        notes = (*notes, *adapters, *encodings, *code_notes(code))
        run_id = new_run_id(self.run_name or launched.name)
        launch = render(decided, run_id, slurm_job=cluster.slurm_job)
        kept = KeptOptions(
            hosts=tuple(host.name for host in decided.prepared),
            spares=self.spares or 0,
            ranks_per_host=self.ranks_per_host,
        )
        return TrainingRun(
            run_id, cluster, decided, launch, launched, folders, columns, notes, purpose, code=code,
            kept=kept,
        )  # fmt: skip


@dataclass(frozen=True)
class LaunchOptions:
    """The options of a launch. An option that is None gets the default of `Launch`.

    The class `Launch` documents the fields that are not listed here.

    Attributes:
        env: environment variables for the ranks. NAME=VALUE sets a value. NAME alone passes the
            local value and keeps it out of all records.
        tags: NAME=VALUE pairs that ps, reports and trackers show.
        notify: command line that the head starts when the run ends or waits, with the run's state
            as JSON on stdin; "" for none.
        webhook: path of a local file that contains the URL to which the head posts this JSON; ""
            for none.
        command: command line that started the run, for the run's record.
    """

    max_restarts: int | None = None
    min_nodes: int | None = None
    wait: bool | None = None
    share_hosts: bool | None = None
    timeout_seconds: float | None = None
    hang_seconds: float | None = None
    grace_seconds: float | None = None
    env: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    notify: str = ""
    webhook: str = ""
    command: tuple[str, ...] = ("python",)

    def __post_init__(self) -> None:
        """Check the variables, the tags and the notifications.

        Raises:
            UsageError: a variable must not be set, or a tag or notification is not valid.
        """
        read_env(self.env)
        read_tags(self.tags)
        read_notify(self.notify, self.webhook)

    def applied_to(self, run: AnyRun) -> AnyRun:
        """Return the run with these options.

        Raises:
            UsageError: `env` contains a variable that the launch itself sets.
        """
        settings = {name: value for name, value in vars(self).items() if value is not None}
        command = settings.pop("command")
        plain, secret = read_env(settings.pop("env"))
        tags = settings.pop("tags")
        env = with_user_variables(run.launch, plain, secret, read_tags(tags))
        notify = read_notify(settings.pop("notify"), settings.pop("webhook"))
        has_webhook = bool(notify.webhook)
        launch = replace(
            run.launch, env=env, notify=notify.command, webhook=has_webhook, **settings
        )
        kept = replace(
            run.kept,
            **{name: value for name, value in settings.items() if name != "hang_seconds"},
            tags=tags,
            env=tuple(plain),
            secret_env=tuple(secret),
            notifies=has_webhook or bool(notify.command),
        )
        return replace(
            run, command=command, launch=launch, secrets=secret, kept=kept, webhook=notify.webhook
        )


def code_notes(code: UserCode) -> tuple[str, ...]:
    """Return a note for each Python file of the user that the hosts execute."""
    return tuple(
        f"the hosts execute your file {file.name} (SHA-256 {file.sha256[:12]})"
        for file in code.files
    )


def as_tuned(recipe: Recipe, ranks_per_host: int | None) -> Recipe:
    """Return the recipe as tunings store it, with the requested number of ranks per host."""
    return replace(recipe, ranks_per_host=ranks_per_host or recipe.ranks_per_host)


def with_batch_of(recipe: Recipe, plan: LaunchPlan) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe with the global batch size of the plan, and a note about it.

    A recipe without per_device_train_batch_size is returned unchanged, without a note.
    """
    if recipe.training.per_device_train_batch_size is None:
        return recipe, ()
    samples = sum(rank.samples for host in plan.hosts for rank in host.placement)
    training = replace(recipe.training, per_device_train_batch_size=None)
    [why] = [decision.why for decision in plan.decisions if decision.what == "batch"]
    return replace(recipe, batch_size=samples, training=training), (f"batch_size={samples}: {why}",)


def size_of(recipe: Recipe) -> ModelSize | None:
    """Return the size of the recipe's model; None if it is not known here."""
    if recipe.from_scratch:
        vocabulary = recipe.spec.new_vocabulary(recipe.options)
        size = size_from_scratch(recipe.model, recipe.config_overrides, vocabulary)
    else:
        size = _size_of_model(recipe.base_model)
    teacher = _size_of_model(recipe.teacher) if recipe.teacher else None
    return replace(size, teacher=teacher.parameters) if size and teacher else size


def _size_of_model(model: str) -> ModelSize | None:
    return model_size(Path(model)) or (cached_size(model) if on_the_hub(model) else None)


def say_notes(run: TrainingRun, view: View) -> None:
    """Show the run's notes, which a user should read before the run begins."""
    for note in run.notes:
        view.say(f"note: {note}")


def headline_of(run: TrainingRun) -> list[str]:
    """Return lines that describe the model, the data and the hosts of a run."""
    lines = headline(run.recipe, run.plan, run.purpose, run.folders, run.columns)
    return [*lines, *(f"note: {note}" for note in hub_notes(run.recipe))]


def shape_of(run: TrainingRun, runs: Sequence[PastRun], name: str = "") -> Shape:
    """Return a summary of a planned training run, with the time and the cost of an epoch.

    Args:
        runs: measured training runs, newest first.
        name: path of the facts file that describes the hosts; "" without a file.
    """
    hosts = run.cluster.facts.hosts
    fields = json.loads(json.dumps(asdict(run.recipe)))  # in the same form as in a run's record
    planned = {host.name for host in run.plan.hosts}
    price, why = price_of(run.prices)
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
