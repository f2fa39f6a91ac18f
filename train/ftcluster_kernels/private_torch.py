"""Private names of torch with no public equivalent; tests/engine fails if a name disappears."""

from functools import cache
from threading import Thread
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.jit import _builtins
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext


def version_of(tensor: torch.Tensor) -> int:
    """Return a number that grows with each in-place change; 0 for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def is_transformed() -> bool:
    """Return True if torch must see each operation, so that no kernel may replace any operation.

    This is the case while a transform of torch.func, forward-mode differentiation or a dispatch
    mode, such as FlopCounterMode, is active.
    """
    return bool(
        forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


def has_memory(tensor: torch.Tensor) -> bool:
    """Return False for a tensor that has no own elements in memory, such as a batched gradient."""
    return bool(torch._C._has_storage(tensor))


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if hooks are registered on the optimizer itself for the start of each step."""
    return bool(optimizer._optimizer_step_pre_hooks)


def function_of(node: object) -> type | None:
    """Return the Python autograd function that created a node of a graph, or None."""
    function: type | None = getattr(type(node), "_forward_cls", None)
    return function


@cache
def has_onednn_linear(dtype: torch.dtype) -> bool:
    """Return True if `onednn_linear` works with this version of torch on this CPU."""
    small = torch.ones(2, 2, dtype=dtype, device="cpu")
    try:
        onednn_linear(small, small, small[0])
    except (AttributeError, RuntimeError):  # a torch without oneDNN, or a CPU too old for bf16
        return False
    return True


def onednn_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute a linear layer with oneDNN, which adds the bias to sums in registers.

    torch's addmm copies the bias into each row of the output and reads it again, which makes a
    matmul 5 to 7 % slower. All arguments have the same dtype, bf16 or fp32, and the bias is
    contiguous. The result has no gradient.
    """
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return output


@cache
def _ordinary_keys() -> frozenset[int]:
    """Return the dispatch keys of ordinary CPU tensors, with and without inference mode."""
    tensors = [torch.empty(0, dtype=torch.float32, device="cpu")]
    with torch.inference_mode():
        tensors.append(torch.empty(0, dtype=torch.float32, device="cpu"))
    return frozenset(torch._C._dispatch_keys(x).raw_repr() for x in tensors)


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return True for a dense tensor whose values are in this CPU's memory, unchanged.

    Sparse, nested, quantized, meta, batched and fake tensors have other dispatch keys, and so do
    views that negate or conjugate the values in memory.
    """
    return torch._C._dispatch_keys(tensor).raw_repr() in _ordinary_keys()


@cache
def _ordinary_states() -> frozenset[int]:
    """Return the dispatch keys that a thread adds to each call, with and without inference mode.

    The function reads them in a new thread, because no mode is active there.
    """
    states: set[int] = set()

    def read() -> None:
        states.add(torch._C._dispatch_tls_local_include_set().raw_repr())
        with torch.inference_mode():
            states.add(torch._C._dispatch_tls_local_include_set().raw_repr())

    thread = Thread(target=read)
    thread.start()
    thread.join()
    return frozenset(states)


def computes_directly() -> bool:
    """Return True if calls go directly to torch's CPU operators.

    Transforms of torch.func, dispatch modes (such as FLOP counters), tracing, forward derivatives
    and function modes must see torch's own calls. The mode of `torch.set_default_device("cpu")`
    only adds a device to functions that create tensors.
    """
    modes = torch._C._len_torch_function_stack()
    return (
        torch._C._dispatch_tls_local_include_set().raw_repr() in _ordinary_states()
        and forward_ad._current_level < 0
        and not torch.compiler.is_compiling()
        and (not modes or all(map(_is_of_cpu, _get_current_function_mode_stack())))
    )


def _is_of_cpu(mode: Any) -> bool:
    return type(mode) is DeviceContext and mode.device == torch.device("cpu")


def has_global_hooks() -> bool:
    """Return True if a global hook is registered for all modules."""
    return bool(torch.nn.modules.module._has_any_global_hook())


def script_as(function: Any, original: Any) -> None:
    """Make `torch.jit.script` compile calls of a function as calls of the original."""
    operator = _builtins._find_builtin(original)
    if operator is not None:
        _builtins._register_builtin(function, operator)
    else:
        function.__prepare_scriptable__ = lambda: original
