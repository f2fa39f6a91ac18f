"""What an entry is: what it changes, on what exactly, and the guard that it cannot be without.

What does not fit is said once, by rank 0.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from ftcluster_common.protocol.launch import own_rank
from ftcluster_kernels.private_torch import has_global_hooks

Place = TypeVar("Place")
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
BF16_FLAGS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}


def always(*_: Any, **__: Any) -> None:
    """Every call.

    tests/engine/test_patching.py lists such entries, each with the reason.
    """


@dataclass(frozen=True)
class FunctionPatch:
    """A function whose calls go to a kernel, where that computes the same.

    Attributes:
        owner: the module or class that has the function.
        original: the function, as the owner has it before it is patched.
        guard: gets a call's arguments. None: the kernel computes what the original would.
            Otherwise why the original is called, for the user; "" where that is as it should be.
        kernel: takes the original's arguments.
        fallback: what is called where the guard objects; the original, unless given.
    """

    owner: Any
    original: Callable[..., Any]
    guard: Callable[..., str | None]
    kernel: Callable[..., Any]
    fallback: Callable[..., Any] | None = None

    def function(self, say: Callable[[str], None] | None = None) -> Callable[..., Any]:
        """What is called in place of the original.

        Args:
            say: is told why a call goes to the original, each time.
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

        # pickle writes a function as the name by which it is found, which has to be the owner's:
        # torch's own functions may have the name of a module in C, whose function is the original
        owner = self.owner
        if not isinstance(owner, type) and hasattr(owner, "__name__"):
            patched.__module__, patched.__qualname__ = owner.__name__, self.original.__name__
        return patched


@dataclass(frozen=True)
class ObjectPatch(Generic[Place]):
    """A change of an object, such as a model, in those places of it where it computes the same.

    Attributes:
        guard: the places in an object where the change is right; none where it is done already.
        change: makes it in one of them.
    """

    guard: Callable[[Any], Iterable[Place]]
    change: Callable[[Place], object]

    def apply(self, patched: Any) -> int:
        """Change an object; returns in how many places."""
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

    So a saved model can be loaded where this package is not installed.
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
    """Have pickle and `copy.deepcopy` see modules without what this package changes in them."""
    reduce = torch.nn.Module.__reduce_ex__

    @functools.wraps(reduce)
    def reduced(self: torch.nn.Module, protocol: Any) -> Any:
        parts = reduce(self, protocol)
        if isinstance(parts, tuple) and len(parts) > 2 and isinstance(parts[2], dict):
            return *parts[:2], without_patches(parts[2]), *parts[3:]
        return parts

    torch.nn.Module.__reduce_ex__ = reduced


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether someone has to see what the module gets or returns, in either pass."""
    return has_global_hooks() or any(vars(module)[hooks] for hooks in HOOKS)


def call_after(owner: type, name: str, action: Callable[[Any], object]) -> None:
    """Have a class's method call `action` with the object at its end."""
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
    """Whether two functions return the same for inputs; not where one of them fails with these."""
    # a script's model may be called under autocast, whose rounding hides what is the same
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
        try:
            expected, found = original(*inputs), other(*inputs)
            alike = torch.allclose(found, expected, rtol=rtol, atol=atol)
        except Exception:  # a class that nobody knows may ask for anything, and return anything
            return False
    return alike and bool(expected.dtype == found.dtype)


@cache
def say_once(text: str) -> None:
    """Write a line to stderr, if this process has not yet."""
    if own_rank({"PMI_RANK": "0", **os.environ}) == 0:
        print(f"fast: {text}", file=sys.stderr, flush=True)


@cache
def say_fp32() -> None:
    """Say that bf16 would be faster, where it would be."""
    words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    if flags := [name for flag, name in BF16_FLAGS.items() if flag in words]:
        say_once(
            f"the script trains in fp32; with {flags[0]} this CPU is faster in bf16: --bf16 of "
            'Trainer, mixed_precision="bf16" of Accelerate, or torch.autocast'
        )
