"""The modes that `bench scaling` compares: ways to exchange gradients or weights."""

from itertools import product

from ftcluster.benchmark.scaling_model import Mode
from ftcluster.errors import UsageError
from ftcluster.planning.plan import LaunchPlan
from ftcluster_common.protocol.launch import GLOO, IMPI
from ftcluster_common.recipe import Recipe

WHOLE, SHARDED, LOCAL = "whole", "sharded", "local"
DTYPES = {WHOLE: ("fp32", "bf16"), SHARDED: ("fp32", "bf16"), LOCAL: ("bf16", "int8")}
ALL = [
    Mode(backend, dtype, optimizer)
    for backend, optimizer in product((GLOO, IMPI), DTYPES)
    for dtype in DTYPES[optimizer]
]


def read_modes(text: str) -> list[Mode]:
    """Return the modes of `--modes`: comma-separated names, or all.

    >>> [mode.name for mode in read_modes("impi-bf16-whole,gloo-fp32-whole")]
    ['impi-bf16-whole', 'gloo-fp32-whole']

    Raises:
        UsageError: there is no such mode.
    """
    by_name = {mode.name: mode for mode in ALL}
    names = list(by_name) if text == "all" else list(dict.fromkeys(text.split(",")))
    if wrong := [name for name in names if name not in by_name]:
        raise UsageError(f"no such mode: {', '.join(wrong)}", f"modes: {', '.join(by_name)}")
    return [by_name[name] for name in names]


def overrides(mode: Mode) -> list[str]:
    """Return the recipe fields that select a mode."""
    backend = f"training.ddp_backend={mode.backend}"
    if mode.optimizer == LOCAL:
        return [backend, "training.sync=local", f"training.sync_dtype={mode.dtype}"]
    return [
        backend,
        "training.sync=step",
        f"training.gradient_dtype={mode.dtype}",
        f"training.shard_optimizer={str(mode.optimizer == SHARDED).lower()}",
    ]


def mode_of(recipe: Recipe, plan: LaunchPlan) -> Mode:
    """Return the mode of a planned training run."""
    training = recipe.training
    if training.sync == "local":
        return Mode(plan.backend, training.sync_dtype, LOCAL, training.sync_steps)
    if plan.shard_optimizer:
        return Mode(plan.backend, training.gradient_dtype, SHARDED)
    dtype = "bf16" if training.gradient_dtype == "bf16" else "fp32"
    return Mode(plan.backend, dtype, WHOLE)
