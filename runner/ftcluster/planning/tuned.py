"""Apply the settings that `ftcluster tune` has found for a recipe. Pure functions only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ftcluster.cluster.facts import HostFacts
from ftcluster.cluster.tunings import Tuning, hosts_of, recipe_of
from ftcluster_common.recipe import Recipe

TRAINING = "training."


@dataclass(frozen=True)
class Tuned:
    """The fields of a recipe that `ftcluster tune` has measured, instead of the plan's defaults.

    Attributes:
        settings: values by field name; fields of the section `training` have the prefix
            `training.`.
        why: the reason to show for decisions that follow these settings.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def reason(self, recipe: Recipe, name: str) -> str:
        """Return the place where a field was set, as the reason of a decision."""
        return self.why if name in self.settings else f"set in recipe {recipe.name}"

    def applied_to(self, recipe: Recipe) -> Recipe:
        """Return the recipe with these settings."""
        top: dict[str, Any] = {}
        training: dict[str, Any] = {}
        for name, value in self.settings.items():
            section = training if name.startswith(TRAINING) else top
            section[name.removeprefix(TRAINING)] = value
        return replace(recipe, training=replace(recipe.training, **training), **top)


UNTUNED = Tuned()


def written(settings: Mapping[str, Any]) -> str:
    """Format settings as command-line arguments.

    >>> written({"ranks_per_host": 2, "training.shard_optimizer": True})
    'ranks_per_host=2 training.shard_optimizer=true'
    """
    literals = {True: "true", False: "false", None: "null"}
    return " ".join(
        f"{name}={literals[value] if isinstance(value, bool) or value is None else value}"
        for name, value in settings.items()
    )


def choose_tuned(
    tunings: Sequence[Tuning], recipe: Recipe, hosts: Sequence[HostFacts]
) -> tuple[Tuned, tuple[str, str] | None]:
    """Return the tuned settings for a recipe on these hosts, and the decision with its reason.

    The decision is None if this recipe was never tuned.
    """
    now = hosts_of(hosts)
    same = [tuning for tuning in tunings if tuning.recipe == recipe_of(recipe)]
    for tuning in same:
        if tuning.hosts != now:
            continue
        on = f"ftcluster tune on {tuning.date}"
        if not tuning.settings:
            why = f"{on}: none of {tuning.trials} trials was faster by more than the spread"
            return UNTUNED, ("the plan's default", f"{why}, {tuning.spread:.1%}")
        value = f"{tuning.speed_up:.2f} x the plan's default"
        source = f"{on}, {tuning.trials} trials: {written(tuning.settings)}"
        return Tuned(tuning.settings, f"tuned: {on}"), (value, source)
    if same:
        newest = max(same, key=lambda tuning: tuning.date)
        differs = _difference(newest.hosts, now)
        why = f"the tuning of {newest.date} was done on other hosts: {differs}"
        why += "; to tune again: ftcluster tune"
        return UNTUNED, ("none", why)
    return UNTUNED, None


def _difference(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """Return the first difference between the hosts of a tuning and the current hosts, as text."""
    names, others = ([str(host["name"]) for host in hosts] for hosts in (then, now))
    if names != others:
        return f"then {', '.join(names)}, now {', '.join(others)}"
    for before, after in zip(then, now, strict=True):
        changed = [key for key in after if before.get(key) != after[key]]
        if changed:
            return f"{after['name']} has a different {', '.join(changed)}"
    return "another version of ftcluster"
