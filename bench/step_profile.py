"""Divides the time of a training step into categories, by torch's profiler.

Torch records operators and autograd's nodes. While a profile is made, `parts_named` also names
the parts of a step that are not operators: our loops in C, the modules, the loss, the optimizer.
Each moment of a step belongs to the innermost event on the main thread, and each event to a
category: by its operator, by the part or the autograd function around it, and in the backward pass
by the part whose forward pass made the node. So the categories of a step add up to its time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import profile, schedule

from ftcluster_kernels import simd
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.optim import flat_step
from ftcluster_train.engine.optim.gradient_buckets import GradientBuckets
from ftcluster_train.engine.step import Batches
from ftcluster_train.engine.tasks.base import Task

MATMULS, ATTENTION, NORMS = "matmuls", "attention", "norms"
ACTIVATIONS, EMBEDDING, LOSS = "activations, dropout", "embedding", "loss"
OPTIMIZER, GRADIENT_NORM, COPIES = "optimizer", "gradient norm", "casts, copies"
ALL_REDUCE, WAITING, BATCH = "all-reduce", "waiting", "batch"
ADDITIONS, PYTHON, OTHER = "additions", "Python", "other"
CATEGORIES = (
    MATMULS, ATTENTION, NORMS, ACTIVATIONS, EMBEDDING, LOSS, OPTIMIZER, GRADIENT_NORM, COPIES,
    ADDITIONS, ALL_REDUCE, WAITING, BATCH, PYTHON, OTHER,
)  # fmt: skip

# turns, each of a step without a profiler, a step in which it warms up, and a profiled step
PROFILED, CYCLE = 2, 3
SHOWN = 24  # number of operators
# the part "fused loss" contains the matmul with the weight of the output layer
PART, LOOP, FUSED_LOSS = "part: ", "loop: ", "fused loss"
STEP, NODE = "ProfilerStep", "autograd::engine::evaluate_function: "
# parts whose Python code also counts
WHOLE = (BATCH, WAITING, ALL_REDUCE)
# categories of our autograd functions: by their attribute `kernel`, or else by their module
KERNELS = {
    "attention": ATTENTION, "rotary": ATTENTION, "norm": NORMS, "activations": ACTIVATIONS,
    "dropout": ACTIVATIONS, "cross_entropy": FUSED_LOSS, "low_rank": MATMULS,
}  # fmt: skip
MODULES = {
    "linear": MATMULS, "nf4": MATMULS, "documents": ATTENTION, "norms": COPIES,
    "token_rows": EMBEDDING, "fp32_residuals": EMBEDDING,
}  # fmt: skip
MATMUL_OPERATORS = {
    "aten::linear", "aten::matmul", "aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm",
    "aten::baddbmm_", "mkldnn::_linear_pointwise", "aten::mkldnn_linear",
    *(
        LOOP + name
        for name in (
            "product", "weight_gradient", "fma_product", "column_sums", "low_rank_output",
            "low_rank_gradients",
        )
    ),
}  # fmt: skip
COPY_OPERATORS = {
    "aten::copy_", "aten::to", "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::cat",
    "aten::fill_", "aten::zero_", "aten::zeros", "aten::zeros_like", "aten::pad",
    "aten::constant_pad_nd", "aten::index", "aten::index_copy_", "aten::index_select",
    LOOP + "widen",
}  # fmt: skip
KINDS = {
    MATMULS: MATMUL_OPERATORS, COPIES: COPY_OPERATORS,
    ADDITIONS: {"aten::add", "aten::add_", "aten::sum"},
    GRADIENT_NORM: {"aten::linalg_vector_norm", "aten::_foreach_norm", "aten::_foreach_mul_"},
}  # fmt: skip
# prefixes of the names of torch's operators
OPERATORS = ("aten::", "mkldnn::", "c10d::", "quantized::", LOOP)


def steps_of(warm_up: int) -> int:
    """Return the number of steps of a training that `profiled` profiles."""
    return warm_up + CYCLE * PROFILED


@contextmanager
def profiled(warm_up: int, found: dict[str, Any]) -> Iterator[profile]:
    """Profile some steps of a training, in turns with steps that are not profiled.

    Call the profiler's `step` after each step. The training needs `steps_of(warm_up)` steps.

    Args:
        warm_up: number of steps that are not counted.
        found: afterwards contains `seconds`, the mean time of a profiled step, `parts`, the seconds
            of it by category, and `operators`, the seconds of the longest events by name.
    """
    parts, operators, durations = Counter[str](), Counter[str](), list[float]()

    def count(profiler: profile) -> None:
        events = in_steps(profiler.events() or [])
        durations.extend(
            event.time_range.elapsed_us() / 1e6 for event in events if event.name.startswith(STEP)
        )
        for event, category in with_categories(events):
            seconds = event.self_cpu_time_total / 1e6 / PROFILED
            parts[category] += seconds
            operators[f"{category}: {event.name.partition('#')[0]}"] += seconds

    plan = schedule(skip_first=warm_up, wait=1, warmup=1, active=1, repeat=PROFILED)
    with parts_named(), profile(schedule=plan, on_trace_ready=count) as profiler:
        yield profiler
    found |= {
        "seconds": sum(durations) / PROFILED,
        "parts": {name: parts[name] for name in CATEGORIES},
        "operators": dict(operators.most_common(SHOWN)),
    }


def turns(warm_up: int) -> list[tuple[int, int]]:
    """Return the numbers of the steps without and with a profiler of each turn, from 0."""
    begins = range(warm_up, steps_of(warm_up), CYCLE)
    return [(begin, begin + CYCLE - 1) for begin in begins]


@contextmanager
def parts_named() -> Iterator[None]:
    """Name the parts of a step for torch's profiler, and restore the code afterwards.

    The class of the task must have been imported.
    """
    with ExitStack() as patches:

        def replace(owner: Any, name: str, function: Any) -> None:
            patches.enter_context(patch.object(owner, name, function))

        library = simd.loaded_library()
        if library is not None:
            loops = _NamedLoops(library)
            replace(simd, "loaded_library", lambda: loops)
        replace(nn.Module, "__call__", _call_module)
        parts: list[tuple[Any, str, str]] = [
            (flat_step, "norm_of", GRADIENT_NORM), (Batches, "read", BATCH),
            (GradientBuckets, "_start_all_reduce", ALL_REDUCE),
            (GradientBuckets, "_add_gradient", COPIES), (GradientBuckets, "_clear", EMBEDDING),
            (GradientBuckets, "_add_rows", EMBEDDING),
        ]  # fmt: skip
        for kind in _subclasses(Task):
            own = vars(kind)
            parts += [(kind, name, LOSS) for name in ("loss", "batch_loss") if name in own]
            parts += [(kind, name, BATCH) for name in ("collate", "gather_batch") if name in own]
        for owner, name, category in parts:
            replace(owner, name, _in_part(category, vars(owner)[name]))
        _name_waits(replace)
        yield


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


def _named(name: str) -> Any:
    # the public `record_function` is slower, and torch function modes see its calls
    return torch._C._profiler._RecordFunctionFast(name)


def _in_part(category: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _named(PART + category):
            return function(*args, **kwargs)

    return call


def _name_waits(replace: Callable[[Any, str, Any], None]) -> None:
    """Name the blocks in which a rank waits for others."""
    waits: list[Any] = []
    enter, leave = Traffic.__enter__, Traffic.__exit__

    def begin(self: Traffic) -> None:
        waits.append(_named(PART + WAITING))
        waits[-1].__enter__()
        enter(self)

    def end(self: Traffic, *error: Any) -> None:
        leave(self, *error)
        waits.pop().__exit__(*error)

    replace(Traffic, "__enter__", begin)
    replace(Traffic, "__exit__", end)


class _NamedLoops:
    """The library of our loops in C; each call of a loop is an event."""

    def __init__(self, library: Any) -> None:
        self._library, self._loops = library, dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name.endswith(("_bytes", "_space")):  # these return sizes and compute nothing
            return function
        if name not in self._loops:

            def call(*arguments: Any) -> Any:
                with _named(LOOP + name):
                    return function(*arguments)

            self._loops[name] = call
        return self._loops[name]


_plain_call = nn.Module.__call__


def _call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    category = category_of_module(type(module))
    if not category:
        return _plain_call(module, *args, **kwargs)
    with _named(PART + category):
        return _plain_call(module, *args, **kwargs)


@cache
def category_of_module(kind: type[nn.Module]) -> str:
    """Return the category of a class of modules; "" for modules of several categories."""
    name, file = kind.__name__, kind.__module__
    if issubclass(kind, nn.Linear) or name == "Conv1D":
        return MATMULS
    if issubclass(kind, nn.Embedding):
        return EMBEDDING
    if issubclass(kind, nn.Dropout) or file.endswith((".activations", ".activation")):
        return ACTIVATIONS
    if name.endswith(("Norm", "RMSNorm", "LayerNorm")):
        return NORMS
    # an attention layer's matmuls with weights are in modules of their own
    return ATTENTION if "Attention" in name or "Rotary" in name else ""


def categories_of_functions() -> dict[str, str]:
    """Return the categories of our autograd functions and of their nodes, by name."""
    found = {}
    for kind in _subclasses(torch.autograd.Function):
        if kind.__module__.startswith(("ftcluster_kernels.", "ftcluster_train.")):
            of_module = MODULES.get(kind.__module__.rpartition(".")[2], "")
            if category := KERNELS.get(getattr(kind, "kernel", ""), of_module):
                found |= {kind.__name__: category, f"{kind.__name__}Backward": category}
    return found


def with_categories(events: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    """Yield events with their categories.

    Args:
        events: result of `in_steps`.
    """
    parts = _parts_of(events)
    for event in events:
        yield event, _category(event.name, parts[event.id])


def in_steps(events: Iterable[Any]) -> list[Any]:
    """Return the events inside the steps, of the thread that takes the steps, in their order.

    Args:
        events: events of a profiler whose steps were marked, as its `events` returns them.
    """
    events = list(events)
    steps = {event.id: event.thread for event in events if event.name.startswith(STEP)}
    threads = {*steps.values()}
    found = [event for event in events if event.thread in threads and _root(event).id in steps]
    return sorted(found, key=lambda event: (event.time_range.start, -event.time_range.end))


def _root(event: Any) -> Any:
    while event.cpu_parent is not None:
        event = event.cpu_parent
    return event


def _parts_of(events: Iterable[Any]) -> dict[int, str]:
    """Return the part that each event belongs to, by the event's id; "" for none.

    A node of the backward pass belongs to the part of the operator that made the node. Both have
    the same sequence number; the last operator with a number is the one that made the node.
    """
    functions, parts, of_sequence = categories_of_functions(), dict[int, str](), dict[int, str]()
    for event in events:
        name, parent = event.name, event.cpu_parent
        part = parts[parent.id] if parent is not None else ""
        if name.startswith(PART):
            part = name.removeprefix(PART)
        elif name.startswith("Optimizer.step"):
            part = OPTIMIZER
        elif name.startswith(NODE):
            part = functions.get(name.removeprefix(NODE), of_sequence.get(event.sequence_nr, ""))
        else:
            part = functions.get(name, part)
            if event.sequence_nr >= 0:
                of_sequence[event.sequence_nr] = part
        parts[event.id] = part
    return parts


def _category(name: str, part: str) -> str:
    """Return the category of an event.

    Args:
        name: the event's name.
        part: the part that the event belongs to.
    """
    if part in WHOLE:
        return part
    if name.startswith("c10d::"):
        return ALL_REDUCE
    if not name.startswith(OPERATORS):
        return PYTHON
    by_operator = next((kind for kind, names in KINDS.items() if name in names), OTHER)
    if part == FUSED_LOSS:
        return MATMULS if by_operator == MATMULS else LOSS
    # linear layers also copy factors, and add gradients of the same input
    return by_operator if part in ("", MATMULS) else part
