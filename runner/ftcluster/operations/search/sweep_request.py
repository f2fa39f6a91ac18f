"""What a sweep is asked for: the settings that it tries, and the hosts that each run gets."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

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
from ftcluster.search.space import MOST, Axis, Settings, axes_of, combinations, drawn
from ftcluster.search.tpe import Tpe

NAME_LENGTH, DIGEST_LENGTH = 29, 10  # of the 40 that a run's name may have


@dataclass(frozen=True)
class SweepRequest(RecipeRequest):
    """Trainings of one recipe; a word `key=a,b,c` names the values of a field.

    Attributes:
        nodes: number of hosts of each run, and as many runs at once as there are such hosts; None:
            each run has all hosts, one after the other.
        random: how many random combinations are tried; 0: all of them.
        tpe: how many Optuna's sampler TPE chooses by those before, instead.
        seed: what these are drawn with.
        metric: what is compared; "": see `aim_of`.
        retry: whether runs that have failed or were stopped are trained again.
        fetch: a new or empty folder of this machine for the best model, or "".
        report: where a page about the runs is written, or None.
        hub_token: whether the hosts may use the user's token for the Hugging Face Hub.
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
        """Refuse what has nothing to try.

        Raises:
            UsageError: that is so, or there are several recipes.
        """
        super().__post_init__()
        self.user_code()  # whose task may have fields to try
        if self.tpe and self.random:
            raise UsageError("--random and --tpe: one of them chooses the combinations")
        if self.tpe > MOST:
            raise UsageError(f"--tpe {self.tpe:,}: more than {MOST:,} runs")
        if not self._axes[1]:
            raise UsageError(
                "no field has several values",
                "name them: learning_rate=1e-5,2e-5,5e-5; or a range: "
                "learning_rate=1e-5..1e-4 --random 8",
            )

    @cached_property
    def _axes(self) -> tuple[list[str], list[Axis]]:
        return axes_of(self.words, all_fields())

    @property
    def fields(self) -> list[str]:
        """The names of those with several values."""
        return [axis.name for axis in self._axes[1]]

    def strategy(self, at_once: int) -> Strategy[Settings, float | None]:
        """Return what chooses the settings of each run, so many at once where results decide.

        Raises:
            UsageError: there are too many, or a field has a range and none are drawn.
            FtclusterError: optuna is not installed.
        """
        _, axes = self._axes
        if self.tpe:
            return Tpe(axes, self.seed, self.tpe, at_once)
        return Listed(drawn(axes, self.random, self.seed) if self.random else combinations(axes))

    def with_settings(self, settings: Settings, name: str | None = None) -> RecipeRequest:
        """The request of one run, on all hosts that it is given."""
        words = (*self._axes[0], *(f"{key}={value}" for key, value in settings.items()))
        return RecipeRequest(
            words, self.data, self.model, None, 0, self.ranks_per_host, name, self.connection,
            task=self.task, metrics=self.metrics,
        )  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Hosts that have one run at a time.

    Attributes:
        cluster: with these hosts only, the head of their runs first.
        options: arguments of ansible-playbook that say how to reach them.
    """

    cluster: Cluster
    options: tuple[str, ...]

    @cached_property
    def run_hosts(self) -> RunHosts:
        """Where their runs are."""
        return replace(run_hosts_of(self.cluster), options=self.options)


def parts_of(cluster: Cluster, nodes: int | None, options: tuple[str, ...]) -> Sequence[Part]:
    """The hosts in groups of so many, those that are left over unused; None: all in one.

    Raises:
        PlanError: there are fewer hosts.
    """
    usable = cluster.usable
    each = len(first_hosts(usable, nodes).hosts)
    groups = [usable.hosts[n : n + each] for n in range(0, len(usable.hosts) - each + 1, each)]
    return [Part(replace(cluster, facts=replace(usable, hosts=one)), options) for one in groups]


def name_of(request: SweepRequest, settings: Settings, contents: dict[str, str]) -> str:
    """What a run's id begins with: a name, and a digest of what it trains, from what, and on what.

    Args:
        contents: by folder of this machine, a name that changes with its files; it is filled.
    """

    def content(_: str, folder: str) -> str:
        if folder not in contents:
            contents[folder] = copy_name(Path(folder))
        return contents[folder]

    one = request.with_settings(settings)
    code = one.user_code()
    asked = training_recipe(one.words, one.data, one.model, code=code)
    recipe = with_folders(asked, content)
    trained = [asdict(recipe), request.nodes, request.ranks_per_host, *request.launch.env]
    trained += [file.sha256 for file in code.files]
    text = json.dumps(trained, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{plain_name(request.run_name or recipe.name)[:NAME_LENGTH]}-{digest}"
