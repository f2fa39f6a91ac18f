"""Makes steps of Adam and AdamW with torch's fused kernel, in one pass over the weights.

The kernel reads parameter, gradient and state in the order of their memory and ignores strides, so
all layouts are compared before each step. Between steps, an optimizer's parameter groups are as the
script made them, so states that a script saves or copies do not contain the choice of this kernel.
"""

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ftcluster_kernels.private_torch import has_step_hooks
from ftcluster_kernels.simd import is_in_memory
from ftcluster_train.patching.registry import ObjectPatch, report_once

Group = dict[str, Any]
FUSED = (torch.optim.Adam, torch.optim.AdamW)
STATE = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}  # state tensors with the weight's shape


def _open_groups(optimizer: torch.optim.Optimizer) -> Iterator[Group]:
    """Yield parameter groups that the fused kernel supports and for which no kernel is chosen.

    Parameters, gradients and state must be fp32 and have the same strides.
    """
    for group in optimizer.param_groups:
        chosen = [group.get(name) for name in ("fused", "foreach")]
        special = group.get("capturable") or group.get("differentiable")
        if chosen != [None, None] or special or not all(map(_is_plain, group["params"])):
            continue
        if all(_is_aligned(parameter, optimizer.state) for parameter in group["params"]):
            yield group
        else:
            report_once(
                "a step of Adam is not fused, because the strides of a parameter differ from those "
                "of its gradient or state, and torch's fused kernel would ignore that"
            )


def _is_plain(parameter: torch.Tensor) -> bool:
    """Return True for an fp32 tensor in CPU memory whose class is Tensor or Parameter of torch."""
    kind = type(parameter)
    return (
        kind in (torch.Tensor, torch.nn.Parameter)
        and parameter.dtype is torch.float32
        and is_in_memory(parameter)
    )


def _is_aligned(parameter: torch.Tensor, states: Any) -> bool:
    """Return True if gradient and state have the parameter's memory layout, and it has no gaps."""
    grad = parameter.grad
    if grad is None:  # the step skips the parameter
        return True
    state = states.get(parameter, {})  # `get` does not fill the defaultdict
    if not state.keys() <= STATE | {"step"}:
        return False
    others = [grad, *(x for name, x in state.items() if name in STATE)]
    if not all(map(_is_plain, others)):
        return False
    step = state.get("step")
    if step is not None and getattr(step, "dtype", None) is not torch.float32:
        return False
    if parameter.is_contiguous():  # torch's state is then contiguous, too
        return all(x.is_contiguous() for x in others)
    layout = _layout_of(parameter)
    return _is_dense(layout) and all(_layout_of(x) == layout for x in others)


def _layout_of(x: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return stride, length and index of each dimension with more than one element."""
    sizes = zip(x.stride(), x.shape, strict=True)
    return [(stride, size, i) for i, (stride, size) in enumerate(sizes) if size != 1]


def _is_dense(layout: list[tuple[int, int, int]]) -> bool:
    place = 1
    for stride, size, _ in sorted(layout):
        if stride != place:
            return False
        place *= size
    return True


def _set_fused(group: Group) -> None:
    group["fused"] = True


FUSED_ADAMW = ObjectPatch(_open_groups, _set_fused)


class _FusedSteps:
    """Hooks for all optimizers; keeps the groups that the steps in progress have changed."""

    def __init__(self) -> None:
        self._groups: WeakKeyDictionary[torch.optim.Optimizer, list[Group]] = WeakKeyDictionary()

    def before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Make the next step use the fused kernel if the guard allows it."""
        self.after_step(optimizer)  # if the previous step failed
        # a closure or a hook of the script may replace gradients during the step
        changes = any(x is not None for x in (*args[1:], *named.values()))
        changes = changes or has_step_hooks(optimizer)
        if type(optimizer) not in FUSED or changes or torch.compiler.is_compiling():
            return
        before = [group for group in optimizer.param_groups if group.get("fused") is None]
        FUSED_ADAMW.apply(optimizer)
        self._groups[optimizer] = [group for group in before if group.get("fused")]

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Restore the groups as the script made them."""
        for group in self._groups.pop(optimizer, ()):
            group["fused"] = None


def fuse_steps() -> None:
    """Fuse all steps of Adam and AdamW that the guard allows."""
    steps = _FusedSteps()
    register_optimizer_step_pre_hook(steps.before_step)
    register_optimizer_step_post_hook(steps.after_step)
