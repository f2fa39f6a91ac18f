"""Results of `ftcluster tune`. The cluster's record on the head stores them.

A tuning applies to all recipes and hosts that are equal in the fields and facts that influence the
time of a step. This module defines these fields and facts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ftcluster.cluster.facts import HostFacts
from ftcluster_common import RELEASE
from ftcluster_common.recipe import Recipe

# fields of a recipe that do not influence the time of a step
FIELDS_WITHOUT_EFFECT = ("name", "options", "training")
TRAINING_FIELDS_WITHOUT_EFFECT = (
    "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_ratio", "warmup_steps",
    "num_train_epochs", "max_steps", "per_device_eval_batch_size", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "label_smoothing_factor", "logging_strategy", "logging_steps",
    "logging_first_step", "eval_strategy", "eval_steps", "eval_on_start", "save_strategy",
    "save_steps", "save_total_limit", "resume_from_checkpoint", "load_best_model_at_end",
    "metric_for_best_model", "greater_is_better", "seed", "data_seed", "report_to", "run_name",
    "outer_learning_rate", "outer_momentum",
)  # fmt: skip
# facts of a host that influence the time of a step
HOST_FACTS = (
    "name", "cpu_model", "amx", "cores", "threads", "cpu_quota", "stack", "tcmalloc", "openmp",
    "network_interface", "network_provider",
)  # fmt: skip


@dataclass(frozen=True)
class Tuning:
    """The fastest settings of a recipe on some hosts.

    Attributes:
        name: name of the recipe, for messages.
        recipe: the recipe's fields that influence the time of a step, from `recipe_of`.
        hosts: the hosts' facts that influence the time of a step, from `hosts_of`.
        date: day of the measurement, such as 2026-11-23.
        settings: values of the recipe's fields, see Tuned; empty if the plan's default is the
            fastest.
        speed_up: speed with these settings relative to the speed of the plan's default.
        spread: largest relative difference between repeated trials of the same settings.
        trials: total number of trials.
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
    """Return the recipe's fields that influence the time of a step, and ftcluster's release."""
    data = asdict(recipe)
    training = {
        key: value
        for key, value in data["training"].items()
        if key not in TRAINING_FIELDS_WITHOUT_EFFECT
    }
    top = {key: value for key, value in data.items() if key not in FIELDS_WITHOUT_EFFECT}
    compared = {**top, "options": data["options"], "training": training, "ftcluster": RELEASE}
    return json.loads(json.dumps(compared))  # type: ignore[no-any-return]


def hosts_of(hosts: Sequence[HostFacts]) -> list[dict[str, Any]]:
    """Return the hosts' facts that influence the time of a step, in the order of their ranks."""
    return [
        {
            **{key: getattr(host, key) for key in HOST_FACTS},
            "NUMA nodes": [{"cpus": node.cpus, "hbm": node.hbm} for node in host.numa],
        }
        for host in hosts
    ]
