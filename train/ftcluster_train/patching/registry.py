"""Defines entries: each entry names the changed object, the change, and a guard.

Rank 0 reports each kind of unsupported call once.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import torch

from ftcluster_common.protocol.launch import own_rank
from ftcluster_kernels.private_torch import has_global_hooks
from ftcluster_kernels.products import fast_bf16

Place = TypeVar("Place")
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


def always(*_: Any, **__: Any) -> None:
    """Accept every call.

    tests/engine/test_patching.py lists the entries with this guard, each with the reason.
    """


@dataclass(frozen=True)
class FunctionPatch:
    """A function whose calls go to a kernel if the kernel computes the same result.

    Attributes:
        owner: module or class that contains the function.
        original: the owner's function before the patch.
        guard: function that gets a call's arguments. It returns None if the kernel computes the
            same result as the original. Otherwise, it returns the reason as a message for users,
            or "" if there is nothing to report.
        kernel: function with the original's arguments.
        fallback: function for calls that the guard refuses; None means the original.
    """

    owner: Any
    original: Callable[..., Any]
    guard: Callable[..., str | None]
    kernel: Callable[..., Any]
    fallback: Callable[..., Any] | None = None

    def function(self, say: Callable[[str], None] | None = None) -> Callable[..., Any]:
        """Return the function that replaces the original.

        Args:
            say: function that is called with the guard's reason if a call is refused; None if the
                reasons are not needed.
        """
        guard, kernel, fallback = self.guard, self.kernel, self.fallback or self.original

        @functools.wraps(self.original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            why_not = None if guard is always else guard(*args, **kwargs)
            if why_not is None:
                return kernel(*args, **kwargs)
            if why_not and say:
                say(why_not)
            return fallback(*args, **kwargs)

        # Pickle stores a function's module and name, and looks up the function there, so both must
        # lead to the patched function in its owner. Some functions of torch name a C module
        # instead, which still contains the original function.
        owner = self.owner
        if not isinstance(owner, type) and hasattr(owner, "__name__"):
            patched.__module__, patched.__qualname__ = owner.__name__, self.original.__name__
        return patched


@dataclass(frozen=True)
class ObjectPatch(Generic[Place]):
    """A change to parts of an object, such as a model, that does not change its results.

    Attributes:
        guard: function that returns the parts of an object that may be changed, except parts that
            are already changed.
        change: function that changes one of these parts.
    """

    guard: Callable[[Any], Iterable[Place]]
    change: Callable[[Place], object]

    def apply(self, patched: Any) -> int:
        """Change an object; return the number of changed parts."""
        places = list(self.guard(patched))
        for place in places:
            self.change(place)
        return len(places)


def is_ours(value: Any) -> bool:
    """Return True if a function or an object comes from this package."""
    place = getattr(value, "__module__", None) or type(value).__module__
    return str(place).startswith(f"{__package__}.")


def without_patches(state: dict[str, Any]) -> dict[str, Any]:
    """Return a module's attributes without the hooks and forward passes of this package.

    A model that is saved without them can be loaded where this package is not installed.
    """
    state = {
        name: value for name, value in state.items() if name != "forward" or not is_ours(value)
    }
    for name in HOOKS:
        ours = {number for number, hook in (state.get(name) or {}).items() if is_ours(hook)}
        if ours:
            for table in state:  # such as _forward_hooks_with_kwargs
                if table.startswith(name):
                    kept = state[table].items()
                    state[table] = type(state[table])((k, v) for k, v in kept if k not in ours)
    return state


def keep_out_of_pickles() -> None:
    """Hide the changes of this package from pickle and `copy.deepcopy`."""
    reduce = torch.nn.Module.__reduce_ex__

    @functools.wraps(reduce)
    def reduced(self: torch.nn.Module, protocol: Any) -> Any:
        parts = reduce(self, protocol)
        if isinstance(parts, tuple) and len(parts) > 2 and isinstance(parts[2], dict):
            return *parts[:2], without_patches(parts[2]), *parts[3:]
        return parts

    torch.nn.Module.__reduce_ex__ = reduced


def has_hooks(module: torch.nn.Module) -> bool:
    """Return True if a hook sees the module's inputs or outputs, or their gradients."""
    return has_global_hooks() or any(vars(module)[hooks] for hooks in HOOKS)


def call_after(owner: type, name: str, action: Callable[[Any], object]) -> None:
    """Make a class's method call `action` with the object when the method ends."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def extended(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        action(self)

    setattr(owner, name, extended)


@torch.no_grad()  # type: ignore[untyped-decorator]
def computes_same(
    original: Callable[..., Any],
    other: Callable[..., Any],
    *inputs: torch.Tensor,
    rtol: float,
    atol: float,
) -> bool:
    """Return True if two functions return the same result; False if one of them fails."""
    # a script may call its model under autocast, whose rounding hides equality
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
        try:
            expected, actual = original(*inputs), other(*inputs)
            alike = torch.allclose(actual, expected, rtol=rtol, atol=atol)
        except Exception:  # an unknown class may need any arguments, and return anything
            return False
    return alike and bool(expected.dtype == actual.dtype)


@cache
def report_once(text: str) -> None:
    """Write a line to stderr, unless this process has already written it."""
    if own_rank({"PMI_RANK": "0", **os.environ}) == 0:
        print(f"fast: {text}", file=sys.stderr, flush=True)


@cache
def suggest_bf16() -> None:
    """Report that bf16 would be faster, if this CPU has fast instructions for it."""
    if instructions := fast_bf16():
        report_once(
            f"the script trains in fp32, but with {instructions} this CPU is faster in bf16: set "
            '--bf16 for Trainer, or mixed_precision="bf16" for Accelerate, or use torch.autocast'
        )
