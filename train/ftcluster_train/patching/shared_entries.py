"""Patches for both training and scripts: functions of torch and transformers, and modules.

One kernel computes a whole GELU, RMSNorm, or activation of a gated MLP. A module keeps its
class, its layers and their names; only its `forward` changes.
"""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.activations import TORCH, activate, torch_gelu, torch_silu
from ftcluster_kernels.dropout import MOST_DROPPED, dropout
from ftcluster_kernels.norms import rms_norm
from ftcluster_kernels.rotary import Turned, rotary
from ftcluster_train.patching.batch_context import NOTHING, current_context
from ftcluster_train.patching.registry import FunctionPatch, ObjectPatch, computes_same, has_hooks

GELUS = {"none": "gelu", "tanh": "tanh_gelu"}  # keys: torch's names of approximations
torch_dropout = functional.dropout  # `ftcluster_train.fast` may have replaced it
# classes of transformers.activations; both compute GELU's tanh approximation in eight passes
TANH_GELUS = ("NewGELUActivation", "FastGELUActivation")
INNER, OUTER = 5, 3  # sizes of the layers in the test of an MLP
EPSILONS = ("variance_epsilon", "eps")  # names of RMSNorm's epsilon
ROTARY_FUNCTION = "apply_rotary_pos_emb"  # name of the function in transformers' models
PARAMETERS = ["q", "k", "cos", "sin", "unsqueeze_dim"]


class _Mlp(NamedTuple):
    """The names of an MLP's parts: down(dropout(act(gate(x)) * up(x))).

    Attributes:
        up: "" if the activation is not multiplied by another layer's output.
        dropout: "" if there is no dropout.
    """

    gate: str
    up: str
    down: str
    act: str
    dropout: str


# in Llama and many others; in T5 1.1, mT5 and Flan-T5; in the first T5
MLPS = (
    _Mlp("gate_proj", "up_proj", "down_proj", "act_fn", ""),
    _Mlp("wi_0", "wi_1", "wo", "act", "dropout"),
    _Mlp("wi", "", "wo", "act", "dropout"),
)


def _drops(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> str | None:
    """Accept training calls that do not change their input in place, in fp32 or bf16."""
    fits = training and 0 < p <= MOST_DROPPED and not inplace and simd.is_fit(input)
    return None if fits else ""


DROPOUT = FunctionPatch(
    functional, torch_dropout, _drops, lambda input, p=0.5, *_, **__: dropout(input, p)
)
EXACT_DROPOUT = FunctionPatch(
    functional, torch_dropout, _drops, lambda input, p=0.5, *_, **__: dropout(input, p, exact=True)
)


def _is_gelu(input: torch.Tensor, approximate: str = "none") -> str | None:  # noqa: ARG001
    """Accept GELU and its tanh approximation."""
    return None if approximate in GELUS else ""


def _is_silu(input: torch.Tensor, inplace: bool = False) -> str | None:  # noqa: ARG001
    """Accept calls that do not change their input in place."""
    return "" if inplace else None


GELU = FunctionPatch(
    functional,
    torch_gelu,
    _is_gelu,
    lambda input, approximate="none": activate(GELUS[approximate], input),
)
SILU = FunctionPatch(
    functional, torch_silu, _is_silu, lambda input, *_, **__: activate("silu", input)
)


class FusedForward:
    """The fused forward pass of a module.

    Args:
        function: function that is called with the module, the module's input, and `setting`.
    """

    def __init__(self, module: nn.Module, function: Callable[..., Any], setting: Any = None):
        self.module, self.function, self._setting = module, function, setting

    def __call__(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        """Compute the forward pass for a single tensor, under any argument name."""
        (x,) = (*inputs, *named.values())
        return self.function(self.module, x, self._setting)


def one_kernel_gelu(_: nn.Module, x: torch.Tensor, __: None) -> torch.Tensor:
    """Compute the tanh approximation of GELU."""
    return activate("tanh_gelu", x)


def tanh_gelu(_: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """Compute the forward pass of the classes in TANH_GELUS with torch's own GELU."""
    return functional.gelu(values, approximate="tanh")


class _FusedMlp(NamedTuple):
    """The setting of an MLP's fused forward pass.

    Attributes:
        activation: name of the activation in `activate`.
        act: module of the activation.
        act_forward: forward pass of `act`, which a script may change after the model was fused.
        exact: see `activate`.
    """

    names: _Mlp
    activation: str
    act: nn.Module
    act_forward: Any
    exact: bool


def _mlp(module: nn.Module, x: torch.Tensor, fused: _FusedMlp) -> Any:
    names, p = fused.names, 0.0
    act = getattr(module, names.act)
    # a script may change these after the model was fused
    changed = act is not fused.act or act.forward != fused.act_forward or has_hooks(act)
    if names.dropout:  # another class may compute something in evaluation too
        dropout = getattr(module, names.dropout)
        plain = type(dropout) is nn.Dropout and "forward" not in vars(dropout)
        changed = changed or not plain or has_hooks(dropout)
        p = dropout.p if not changed and dropout.training else 0.0
    if changed or p > MOST_DROPPED:
        return type(module).forward(module, x)
    factor = getattr(module, names.up)(x) if names.up else None
    hidden = activate(fused.activation, getattr(module, names.gate)(x), factor, p, fused.exact)
    down = getattr(module, names.down)
    if names.dropout and down.weight.dtype not in (hidden.dtype, torch.int8):  # as in T5's code
        hidden = hidden.to(down.weight.dtype)
    return down(hidden)


def _rms_norm(module: nn.Module, x: torch.Tensor, epsilon: str) -> torch.Tensor:
    copies = (current_context() or NOTHING).copies
    return rms_norm(x, module.weight, getattr(module, epsilon), copies)


def _tanh_gelus(model: nn.Module) -> Iterator[FusedForward]:
    """Yield modules of the classes TANH_GELUS whose forward pass is unchanged."""
    for module in _unpatched(model):
        kind = type(module)
        if kind.__module__ == "transformers.activations" and kind.__name__ in TANH_GELUS:
            yield FusedForward(module, one_kernel_gelu)


def _mlps(exact: bool, model: nn.Module) -> Iterator[FusedForward]:
    """Yield modules that compute an MLP; a test runs each module's class with small layers.

    Modules that look alike but also clip, scale or drop values fail the test. If the activation or
    the dropout has hooks, the class's own code runs.

    Args:
        exact: see `activate`.
    """
    for module in _unpatched(model):
        attributes = vars(module)
        if attributes["_parameters"]:
            continue
        names = next((one for one in MLPS if {*one} - {""} == attributes["_modules"].keys()), None)
        act = None if names is None else getattr(module, names.act)
        if names is None or act is None or has_hooks(act):
            continue
        activation = _activation_of(module, names)
        if activation is not None:
            yield FusedForward(module, _mlp, _FusedMlp(names, activation, act, act.forward, exact))


class _InsteadOfDropout(nn.Module):  # type: ignore[misc]
    """A function that no other part of an MLP computes, which shows where the dropout is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 + x.square()


def _activation_of(module: nn.Module, names: _Mlp) -> str | None:
    """Return the activation of an MLP; None if the module computes anything else."""
    small: nn.Module = object.__new__(type(module))
    nn.Module.__init__(small)
    vars(small).update({k: v for k, v in vars(module).items() if k not in vars(small)})
    sizes = {names.gate: (OUTER, INNER), names.up: (OUTER, INNER), names.down: (INNER, OUTER)}
    for seed, name in enumerate(filter(None, sizes)):
        layer = nn.Linear(*sizes[name], bias=False)
        weights = _line(seed, 15, 15).sin_().view(layer.weight.shape)  # always the same
        layer.weight = nn.Parameter(weights, requires_grad=False)
        setattr(small, name, layer)
    setattr(small, names.act, copy.deepcopy(getattr(module, names.act)))  # `train` changes it
    drop = _InsteadOfDropout() if names.dropout else nn.Identity()
    if names.dropout:
        setattr(small, names.dropout, drop)
    values = _line(-30, 40, 96).view(1, 32, OUTER)

    def by_torch(activation: str, x: torch.Tensor) -> torch.Tensor:
        hidden = TORCH[activation](getattr(small, names.gate)(x))
        if names.up:
            hidden = hidden * getattr(small, names.up)(x)
        output: torch.Tensor = getattr(small, names.down)(drop(hidden))
        return output

    for activation in TORCH:
        formula = partial(by_torch, activation)
        if all(
            computes_same(small.train(training).forward, formula, values, rtol=1e-5, atol=1e-5)
            for training in (True, False)
        ):
            return activation
    return None


def _rms_norms(model: nn.Module) -> Iterator[FusedForward]:
    """Yield modules that compute RMSNorm, such as T5's LayerNorm; not norms with 1 + weight."""
    if not simd.is_available():
        return
    for module in _unpatched(model):
        if not type(module).__name__.endswith("Norm"):
            continue
        epsilon = next((name for name in EPSILONS if isinstance(vars(module).get(name), float)), "")
        if not epsilon:
            continue
        if [name for name, _ in module.named_parameters()] != ["weight"]:
            continue
        fused = FusedForward(module, _rms_norm, epsilon)
        values = _line(-2, 3, 2 * module.weight.numel()).view(1, 2, -1)
        if computes_same(module.forward, fused, values, rtol=1e-3, atol=1e-5):  # calls no hooks
            yield fused


def _line(first: float, last: float, count: int) -> torch.Tensor:
    """Return inputs for a test, independent of torch's default dtype and device."""
    return torch.linspace(first, last, count, dtype=torch.float32, device="cpu")


def _unpatched(model: nn.Module) -> Iterator[nn.Module]:
    """Return modules whose forward pass is still the forward pass of their class."""
    return (module for module in model.modules() if "forward" not in vars(module))


def _set_forward(fused: FusedForward) -> None:
    fused.module.forward = fused


FUSED_TANH_GELUS = ObjectPatch(_tanh_gelus, _set_forward)
FUSED_MLPS = ObjectPatch(partial(_mlps, False), _set_forward)
EXACT_MLPS = ObjectPatch(partial(_mlps, True), _set_forward)
FUSED_RMS_NORMS = ObjectPatch(_rms_norms, _set_forward)


def _rotary_functions(model: nn.Module) -> Iterator[FunctionPatch]:
    """Yield the rotary functions in the modules' source files that the kernel can replace."""
    if not simd.is_available():
        return
    for name in sorted({type(module).__module__ for module in model.modules()}):
        module = sys.modules[name]
        function = getattr(module, ROTARY_FUNCTION, None)
        if function is None or hasattr(function, "__wrapped__"):
            continue
        if list(inspect.signature(function).parameters) == PARAMETERS and _is_rotary(function):
            yield FunctionPatch(module, function, _fits_rotary, _rotary)


def _replace_rotary(patch: FunctionPatch) -> None:
    setattr(patch.owner, ROTARY_FUNCTION, patch.function())


ROTARY_POSITIONS = ObjectPatch(_rotary_functions, _replace_rotary)


def _rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **__: Any
) -> Turned:
    return rotary(q, k, cos, sin)


def _fits_rotary(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,  # noqa: ARG001 - has the function's arguments
    unsqueeze_dim: int = 1,
) -> str | None:
    """Accept values in the dtype that attention expects, if the kernel supports their shapes."""
    in_bf16 = bool(torch.is_autocast_enabled("cpu"))
    dtype = torch.bfloat16 if in_bf16 else torch.float32
    fits = (
        unsqueeze_dim == 1
        and not cos.requires_grad
        and cos.dtype == torch.float32
        and cos.ndim == 3
        and all(
            values.dtype == dtype
            and values.ndim == 4
            and cos.shape[0] in (1, values.shape[0])
            and cos.shape[1:] == values.shape[2:]
            and values.shape[3] % 2 == 0
            for values in (q, k)
        )
    )
    return None if fits else ""


def _is_rotary(function: Callable[..., Turned]) -> bool:
    values = _line(-2, 3, 96).sin().bfloat16()
    query, key = values.view(1, 2, 6, 8), values[:48].view(1, 1, 6, 8)
    angles = _line(0, 3, 24).view(1, 6, 4).repeat(1, 1, 2)
    same: bool = computes_same(
        lambda *inputs: torch.cat(function(*inputs), 1).float(),
        lambda *inputs: torch.cat(rotary(*inputs), 1).float(),
        query, key, angles.cos(), angles.sin(), rtol=1e-2, atol=1e-3,
    )  # fmt: skip
    return same
