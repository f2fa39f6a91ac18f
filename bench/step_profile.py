"""Where the time of a training step goes, by torch's profiler.

Torch records operators and autograd's nodes. While a profile is made, `parts_named` also names
the parts of a step that are not operators: our loops in C, the modules, the loss, the optimizer.
Each moment of a step belongs to the innermost event on the main thread, and each event to a
category: by its operator, by the part or the autograd function around it, and in the backward pass
by the part whose forward pass made the node. So the categories of a step add up to its time.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
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
PYTHON, OTHER = "Python", "other"
CATEGORIES = (
    MATMULS, ATTENTION, NORMS, ACTIVATIONS, EMBEDDING, LOSS, OPTIMIZER, GRADIENT_NORM, COPIES,
    ALL_REDUCE, WAITING, BATCH, PYTHON, OTHER,
)  # fmt: skip

PLAIN, PROFILED = 3, 3  # number of steps without and with a profiler
# the part "fused loss" contains the matmuls of the layer that makes logits
PART, LOOP, FUSED_LOSS = "part: ", "loop: ", "fused loss"
STEP, NODE = "ProfilerStep", "autograd::engine::evaluate_function: "
# parts without operators of their own: all of their time counts
WHOLE = (BATCH, WAITING, ALL_REDUCE)
# categories of autograd functions in `ftcluster_kernels`: by their attribute `kernel`, or by module
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
    *(LOOP + name for name in ("product", "weight_gradient", "fma_product", "column_sums")),
}  # fmt: skip
COPY_OPERATORS = {
    "aten::copy_", "aten::to", "aten::_to_copy", "aten::clone", "aten::contiguous", "aten::cat",
    "aten::fill_", "aten::zero_", "aten::zeros", "aten::zeros_like", "aten::pad",
    "aten::constant_pad_nd", LOOP + "widen",
}  # fmt: skip
NORM_OPERATORS = {"aten::linalg_vector_norm", "aten::_foreach_norm", "aten::_foreach_mul_"}
# prefixes of the names of torch's operators
OPERATORS = ("aten::", "mkldnn::", "c10d::", "quantized::", LOOP)


def steps_of(warm_up: int) -> int:
    """Return the number of steps of a training that `profiled` profiles."""
    return warm_up + PLAIN + 1 + PROFILED  # in one step, the profiler itself warms up


@contextmanager
def profiled(warm_up: int, found: dict[str, Any]) -> Iterator[profile]:
    """Profile some steps of a training, after PLAIN steps without a profiler.

    Call the profiler's `step` after each step. The training needs `steps_of(warm_up)` steps.

    Args:
        warm_up: number of steps before the PLAIN steps.
        found: afterwards contains `seconds`, the mean time of a profiled step, and `parts` and
            `operators`, the seconds of them by category and by operator.
    """
    plan = schedule(wait=warm_up + PLAIN, warmup=1, active=PROFILED, repeat=1)
    with parts_named(), profile(schedule=plan) as profiler:
        yield profiler
    events = profiler.events() or []
    count = sum(event.name.startswith(STEP) for event in events)
    seconds = seconds_by_category(events)
    found |= {
        "seconds": sum(seconds.values()) / count,
        "parts": {name: seconds[name] / count for name in CATEGORIES},
        "operators": {name: value / count for name, value in by_operator(events)[:24]},
    }


@contextmanager
def parts_named() -> Iterator[None]:
    """Name the parts of a step for torch's profiler, and restore the code afterwards."""
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
    # the public `record_function` takes 10 us, and its calls go through torch function modes
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


@cache
def functions() -> dict[str, str]:
    """Return the categories of our autograd functions and of their nodes, by name."""
    found = {}
    for kind in _subclasses(torch.autograd.Function):
        if kind.__module__.startswith(("ftcluster_kernels.", "ftcluster_train.")):
            of_module = MODULES.get(kind.__module__.rpartition(".")[2], "")
            if category := KERNELS.get(getattr(kind, "kernel", ""), of_module):
                found |= {kind.__name__: category, f"{kind.__name__}Backward": category}
    return found


def seconds_by_category(events: Iterable[Any]) -> Counter[str]:
    """Return the seconds of all profiled steps by category; the sum is the steps' time.

    Args:
        events: events of a profiler whose steps were marked, as its `events` returns them.
    """
    inside, parts = _in_steps(events), dict[int, str]()
    _find_parts(inside, parts)
    seconds: Counter[str] = Counter()
    for event in inside:
        seconds[_category(event, parts[event.id])] += event.self_cpu_time_total / 1e6
    return seconds


def by_operator(events: Iterable[Any]) -> list[tuple[str, float]]:
    """Return the seconds of each operator and its category, the longest first."""
    inside, parts = _in_steps(events), dict[int, str]()
    _find_parts(inside, parts)
    seconds: dict[str, float] = defaultdict(float)
    for event in inside:
        category = _category(event, parts[event.id])
        seconds[f"{category}: {event.name.split('#')[0]}"] += event.self_cpu_time_total / 1e6
    return sorted(seconds.items(), key=lambda found: -found[1])


def _in_steps(events: Iterable[Any]) -> list[Any]:
    """Return the events of the thread that takes the steps, inside the steps, in their order."""
    events = list(events)
    steps = [event for event in events if event.name.startswith(STEP)]
    thread = steps[0].thread if steps else None
    found = [event for event in events if event.thread == thread and _root(event) in steps]
    return sorted(found, key=lambda event: (event.time_range.start, -event.time_range.end))


def _root(event: Any) -> Any:
    while event.cpu_parent is not None:
        event = event.cpu_parent
    return event


def _find_parts(events: Iterable[Any], parts: dict[int, str]) -> None:
    """Find the part that each event belongs to, by the event's id; "" for none.

    A node of the backward pass belongs to the part of the operator that made the node. Both have
    the same sequence number; the last operator with a number is the one that made the node.
    """
    of_sequence: dict[int, str] = {}
    for event in events:
        name, parent = event.name, event.cpu_parent
        part = parts[parent.id] if parent is not None else ""
        if name.startswith(PART):
            part = name.removeprefix(PART)
        elif name.startswith("Optimizer.step"):
            part = OPTIMIZER
        elif name.startswith(NODE):
            part = functions().get(name.removeprefix(NODE), of_sequence.get(event.sequence_nr, ""))
        else:
            part = functions().get(name, part)
            if event.sequence_nr >= 0:
                of_sequence[event.sequence_nr] = part
        parts[event.id] = part


def _category(event: Any, part: str) -> str:
    name = event.name
    if part in WHOLE:
        return part
    if name.startswith("c10d::"):
        return ALL_REDUCE
    if not name.startswith(OPERATORS):
        return PYTHON
    is_matmul, is_copy = name in MATMUL_OPERATORS, name in COPY_OPERATORS
    if part == FUSED_LOSS:
        return MATMULS if is_matmul else LOSS
    if part == MATMULS:  # a copy of a factor is not part of the matmul
        return COPIES if is_copy else MATMULS
    if part:
        return part
    if is_matmul:
        return MATMULS
    if name in NORM_OPERATORS:
        return GRADIENT_NORM
    return COPIES if is_copy else OTHER


