"""What `ftcluster tune` has found, saved on the control node beside the cluster.

A tuning is for all recipes whose steps take the same time, and for hosts that are the same: what
either of them is decides whether it is used.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ftcluster.cluster.facts import HostFacts
from ftcluster.paths import make_state_dir, read_state, state_dir, write_atomically
from ftcluster_common import __version__
from ftcluster_common.recipe import Recipe

FORMAT = 1
FORMS: dict[str, type | tuple[type, ...]] = {  # of a tuning, as JSON
    "name": str, "recipe": dict, "hosts": list, "date": str, "settings": dict,
    "speed_up": (int, float), "spread": (int, float), "trials": int,
}  # fmt: skip
# fields of a recipe that the time of a step does not depend on
ANY_NAME = ("name", "options", "training")
ANY_TRAINING = (
    "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_ratio", "warmup_steps",
    "num_train_epochs", "max_steps", "per_device_eval_batch_size", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "label_smoothing_factor", "logging_strategy", "logging_steps",
    "logging_first_step", "eval_strategy", "eval_steps", "eval_on_start", "save_strategy",
    "save_steps", "save_total_limit", "resume_from_checkpoint", "load_best_model_at_end",
    "metric_for_best_model", "greater_is_better", "seed", "data_seed", "report_to", "run_name",
    "outer_learning_rate", "outer_momentum",
)  # fmt: skip
# facts of a host that it does depend on
OF_HOST = (
    "name", "cpu_model", "amx", "cores", "threads", "cpu_quota", "stack", "tcmalloc", "openmp",
    "network_interface", "network_provider",
)  # fmt: skip


@dataclass(frozen=True)
class Tuning:
    """The fastest settings of a recipe on hosts.

    Attributes:
        name: of the recipe, for messages.
        recipe: see `recipe_of`.
        hosts: see `hosts_of`.
        date: of the measurement, such as 2026-11-23.
        settings: fields of the recipe, see Tuned; none: the plan's default is the fastest.
        speed_up: of these settings, the speed relative to the plan's default.
        spread: of the repeated trials that decided, a part of their mean.
        trials: how many there were.
    """

    name: str
    recipe: Mapping[str, Any]
    hosts: Sequence[Mapping[str, Any]]
    date: str
    settings: Mapping[str, Any]
    speed_up: float
    spread: float
    trials: int


def recipe_of(recipe: Recipe) -> dict[str, Any]:
    """What the time of a step depends on, of a recipe and of ftcluster, as JSON has it."""
    data = asdict(recipe)
    training = {key: one for key, one in data["training"].items() if key not in ANY_TRAINING}
    top = {key: one for key, one in data.items() if key not in ANY_NAME}
    known = {**top, "options": data["options"], "training": training, "ftcluster": __version__}
    return json.loads(json.dumps(known))  # type: ignore[no-any-return]


def hosts_of(hosts: Sequence[HostFacts]) -> list[dict[str, Any]]:
    """The same of hosts, in the order of their ranks."""
    return [
        {
            **{key: getattr(host, key) for key in OF_HOST},
            "NUMA nodes": [{"cpus": node.cpus, "hbm": node.hbm} for node in host.numa],
        }
        for host in hosts
    ]


def saved_tunings() -> tuple[Tuning, ...]:
    """All tunings, the newest last."""
    return read_state(_file(), _tunings) or ()


def _tunings(document: Any) -> tuple[Tuning, ...]:
    """The tunings of a document.

    Raises:
        TypeError, LookupError: it has another form.
    """
    names = {one.name for one in fields(Tuning)}
    known = [{key: one[key] for key in names} for one in document["tunings"]]
    for one in known:
        for key, kind in FORMS.items():
            if not isinstance(one[key], kind):
                raise TypeError(key)
    return tuple(Tuning(**one) for one in known)


def save_tuning(tuning: Tuning) -> None:
    """Save a tuning in place of the one of the same recipe and hosts."""
    others = [
        one for one in saved_tunings() if (one.recipe, one.hosts) != (tuning.recipe, tuning.hosts)
    ]
    _write([*others, tuning])


def forget_tunings(recipe: Recipe) -> tuple[Tuning, ...]:
    """Remove what was found for a recipe, on any hosts; returns what is removed."""
    known, about = saved_tunings(), recipe_of(recipe)
    gone = tuple(one for one in known if one.recipe == about)
    if gone:
        _write([one for one in known if one not in gone])
    return gone


def _write(tunings: Sequence[Tuning]) -> None:
    make_state_dir(state_dir())
    document = {"format": FORMAT, "tunings": [asdict(one) for one in tunings]}
    write_atomically(_file(), json.dumps(document, indent=1) + "\n")


def _file() -> Path:
    return state_dir() / "tunings.json"
