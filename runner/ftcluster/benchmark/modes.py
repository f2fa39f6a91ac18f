"""The modes that `bench scaling` compares: how ranks exchange what they learn."""

from itertools import product

from ftcluster.benchmark.scaling_model import Mode
from ftcluster.errors import UsageError
from ftcluster.planning.plan import LaunchPlan
from ftcluster_common.launch import GLOO, IMPI
from ftcluster_common.recipe import Recipe

OPTIMIZERS = {"whole": False, "sharded": True}
ALL = [
    Mode(*one) for one in product((GLOO, IMPI), ("fp32", "bf16"), OPTIMIZERS.values())
]  # fmt: skip


def read_modes(text: str) -> list[Mode]:
    """The modes of `--modes`: names with commas between them, or all.

    >>> [mode.name for mode in read_modes("impi-bf16-whole,gloo-fp32-whole")]
    ['impi-bf16-whole', 'gloo-fp32-whole']

    Raises:
        UsageError: there is no such mode.
    """
    known = {mode.name: mode for mode in ALL}
    names = list(known) if text == "all" else list(dict.fromkeys(text.split(",")))
    if wrong := [name for name in names if name not in known]:
        raise UsageError(f"no such mode: {', '.join(wrong)}", f"they are {', '.join(known)}")
    return [known[name] for name in names]


def overrides(mode: Mode) -> list[str]:
    """The fields of a recipe for a mode."""
    return [
        f"training.ddp_backend={mode.backend}",
        f"training.gradient_dtype={mode.gradients}",
        f"training.shard_optimizer={str(mode.sharded).lower()}",
    ]


def mode_of(recipe: Recipe, plan: LaunchPlan) -> Mode:
    """The mode of a training."""
    dtype = recipe.training.gradient_dtype
    if dtype == "auto" and not plan.shard_optimizer:
        dtype = "fp32"
    return Mode(plan.backend, dtype, plan.shard_optimizer)
