"""The request for a sweep: the settings to try, and the hosts of each run."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.saved import Cluster
from ftcluster.errors import UsageError
from ftcluster.launch.run_hosts import RunHosts, run_hosts_of
from ftcluster.operations.train.prepare import LaunchOptions, RecipeRequest
from ftcluster.operations.train.recipe_words import training_recipe, with_folders
from ftcluster.paths import plain_name
from ftcluster.planning.plan import first_hosts
from ftcluster.recipe.inputs import copy_name
from ftcluster.recipe.recipe import all_fields
from ftcluster.search.engine import Listed, Strategy
from ftcluster.search.repeats import FOLD
from ftcluster.search.space import MOST, Axis, Settings, Values, axes_of, combinations, drawn
from ftcluster.search.tpe import Tpe

NAME_LENGTH, DIGEST_LENGTH = 29, 10  # a run's name has at most 40 characters


@dataclass(frozen=True)
class SweepRequest(RecipeRequest):
    """A request to train one recipe with several values of its fields, written as `key=a,b,c`.

    Attributes:
        hosts: names of the hosts to use; if empty, all hosts of the cluster that are not drained.
        nodes: number of hosts of each run; groups of that many hosts train in parallel. With None,
            each run uses all hosts, one run after the other.
        random: number of random combinations to try; 0 to try all combinations.
        tpe: number of combinations that Optuna's TPE sampler chooses from earlier results; 0 if the
            sampler is not used.
        seed: seed of the random choices.
        metric: name of the metric to compare; "" for the task's metric, see `aim_of`.
        retry: True if failed and stopped runs are trained again.
        fetch: path of a new or empty local folder for the best model; "" to copy no model.
        report: path of the HTML report to write about the runs; None for no report.
        hub_token: True if the hosts may use the user's token for the Hugging Face Hub.
    """

    random: int = 0
    tpe: int = 0
    seed: int = 0
    metric: str = ""
    retry: bool = False
    fetch: str = ""
    report: Path | None = None
    hub_token: bool = False
    launch: LaunchOptions = field(default_factory=lambda: LaunchOptions(max_restarts=3))

    def __post_init__(self) -> None:
        """Check that there are values to try.

        Raises:
            UsageError: no field has several values, several recipes are named, or options exclude
                each other.
        """
        super().__post_init__()
        self.user_code()  # the user's task may define fields of its own
        if self.tpe and self.random:
            raise UsageError("--random and --tpe exclude each other")
        if self.tpe > MOST:
            raise UsageError(f"--tpe must be at most {MOST:,} runs, got {self.tpe:,}")
        if self.tpe and FOLD in self.fields:
            raise UsageError("--tpe compares single runs, not folds", "choose one fold: fold=1")
        if not self._axes[1]:
            raise UsageError(
                "a sweep needs a field with several values",
                "list values: learning_rate=1e-5,2e-5,5e-5; or pass a range: "
                "learning_rate=1e-5..1e-4 --random 8",
            )

    @cached_property
    def _axes(self) -> tuple[list[str], list[Axis]]:
        fixed, axes = axes_of(self.words, all_fields())
        names = {*(word.partition("=")[0] for word in fixed), *(axis.name for axis in axes)}
        folds = next((word for word in fixed if word.startswith("folds=")), "").removeprefix(
            "folds="
        )
        if FOLD not in names and folds.isdecimal() and 1 < int(folds) <= MOST:
            axes.append(Values(FOLD, tuple(str(number + 1) for number in range(int(folds)))))
        return fixed, axes

    @property
    def fields(self) -> list[str]:
        """The names of the fields with several values."""
        return [axis.name for axis in self._axes[1]]

    def strategy(self, at_once: int) -> Strategy[Settings, float | None]:
        """Return the strategy that chooses the settings of each run.

        Args:
            at_once: number of parallel runs, for strategies that use earlier results.

        Raises:
            UsageError: there are too many combinations, or a field has a range although neither
                `random` nor `tpe` is set.
            FtclusterError: optuna is not installed.
        """
        _, axes = self._axes
        of_folds = [axis for axis in axes if axis.name == FOLD]
        others = [axis for axis in axes if axis.name != FOLD]
        if self.random and of_folds and others:  # each combination is trained on all folds
            folds = combinations(of_folds)
            chosen = drawn(others, self.random, self.seed)
            return Listed([{**settings, **fold} for settings in chosen for fold in folds])
        if self.tpe:
            return Tpe(axes, self.seed, self.tpe, at_once)
        return Listed(drawn(axes, self.random, self.seed) if self.random else combinations(axes))

    def with_settings(self, settings: Settings, name: str | None = None) -> RecipeRequest:
        """Return the request for a run with these settings, on all hosts of the run's `Part`."""
        fields = (*self._axes[0], *(f"{key}={value}" for key, value in settings.items()))
        return RecipeRequest(
            fields, self.data, self.model, None, 0, self.ranks_per_host, name, self.connection,
            task=self.task, metrics=self.metrics,
        )  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A group of hosts that trains one run at a time.

    Attributes:
        cluster: the cluster restricted to these hosts; the first host is the head of their runs.
        options: arguments of ansible-playbook for reaching the hosts.
    """

    cluster: Cluster
    options: tuple[str, ...]

    @cached_property
    def run_hosts(self) -> RunHosts:
        """The hosts of the part's runs."""
        return replace(run_hosts_of(self.cluster), options=self.options)


def parts_of(
    cluster: Cluster, hosts: Sequence[str], nodes: int | None, options: tuple[str, ...]
) -> Sequence[Part]:
    """Return the hosts of a sweep in groups of `nodes` hosts. Remaining hosts are not used.

    If `nodes` is None, all hosts form one group.

    Args:
        hosts: names of the hosts to use; if empty, all usable hosts of the cluster.

    Raises:
        UsageError: `hosts` names a host that cannot be used.
        PlanError: there are fewer hosts than `nodes`.
    """
    usable = with_hosts(cluster, hosts).usable
    each = len(first_hosts(usable, nodes).hosts)
    groups = [usable.hosts[n : n + each] for n in range(0, len(usable.hosts) - each + 1, each)]
    head = cluster.head
    return [
        Part(replace(cluster, facts=replace(usable, hosts=group), record_host=head), options)
        for group in groups
    ]


def name_of(request: SweepRequest, settings: Settings, contents: dict[str, str]) -> str:
    """Return the beginning of a run's id: a name, and a digest of the settings and inputs.

    Args:
        contents: cache that maps folders of this machine to names with a digest of their files.
    """

    def content(_: str, folder: str) -> str:
        if folder not in contents:
            contents[folder] = copy_name(Path(folder))
        return contents[folder]

    of_run = request.with_settings(settings)
    code = of_run.user_code()
    requested = training_recipe(of_run.words, of_run.data, of_run.model, code=code)
    recipe = with_folders(requested, content)
    trained = [asdict(recipe), request.nodes, request.ranks_per_host, *request.launch.env]
    trained += [file.sha256 for file in code.files]
    text = json.dumps(trained, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{plain_name(request.run_name or recipe.name)[:NAME_LENGTH]}-{digest}"
