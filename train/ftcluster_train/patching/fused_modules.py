"""Modules of a model that compute with one kernel: GELUs, MLPs gated by an activation, RMSNorms.

A module keeps its class, its layers and their names; only its `forward` is another one.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ftcluster_train.kernels import simd
from ftcluster_train.kernels.activations import TORCH, activate
from ftcluster_train.kernels.norm import rms_norm
from ftcluster_train.patching.registry import ObjectPatch, computes_same, has_hooks

# classes of transformers.activations; both are the tanh approximation of GELU, in eight passes
TANH_GELUS = ("NewGELUActivation", "FastGELUActivation")
# what gated MLPs call their layers, and inputs and outputs of small ones
LAYERS = {"gate_proj": (3, 5), "up_proj": (3, 5), "down_proj": (5, 3)}
GATED = {*LAYERS, "act_fn"}
EPSILONS = ("variance_epsilon", "eps")  # what RMSNorms call it


class FusedForward:
    """The forward pass of a module.

    Args:
        function: gets the module, what the module is called with, and `setting`.
    """

    def __init__(self, module: nn.Module, function: Callable[..., Any], setting: Any = None):
        self.module, self.function, self._setting = module, function, setting

    def __call__(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        """Called by the module, with one tensor, whatever its argument is called."""
        (x,) = (*inputs, *named.values())
        return self.function(self.module, x, self._setting)


def one_kernel_gelu(_: nn.Module, x: torch.Tensor, __: None) -> torch.Tensor:
    """The tanh approximation of GELU."""
    return activate("tanh_gelu", x)


def tanh_gelu(_: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """The same as the forward pass of a class, by torch's function."""
    return functional.gelu(values, approximate="tanh")


def _gated_mlp(module: nn.Module, x: torch.Tensor, setting: tuple[str, nn.Module]) -> Any:
    activation, act_fn = setting
    if module.act_fn is not act_fn or has_hooks(act_fn):  # both may come after the model was fused
        return type(module).forward(module, x)
    return module.down_proj(activate(activation, module.gate_proj(x), module.up_proj(x)))


def _rms_norm(module: nn.Module, x: torch.Tensor, epsilon: str) -> torch.Tensor:
    return rms_norm(x, module.weight, getattr(module, epsilon))


def _tanh_gelus(model: nn.Module) -> Iterator[FusedForward]:
    """Modules of two classes of transformers, with the forward pass of their class."""
    for module in _unpatched(model):
        kind = type(module)
        if kind.__module__ == "transformers.activations" and kind.__name__ in TANH_GELUS:
            yield FusedForward(module, one_kernel_gelu)


def _gated_mlps(model: nn.Module) -> Iterator[FusedForward]:
    """Modules that compute the same with small layers in place of their own.

    Others also cut, scale or drop. A call with hooks on the activation is the class's own.
    """
    for module in _unpatched(model):
        own = vars(module)
        if own["_modules"].keys() == GATED and not own["_parameters"]:
            activation = None if has_hooks(module.act_fn) else _activation_of(module)
            if activation is not None:
                yield FusedForward(module, _gated_mlp, (activation, module.act_fn))


def _activation_of(module: nn.Module) -> str | None:
    """None where it computes anything but a gated MLP."""
    small: nn.Module = object.__new__(type(module))
    nn.Module.__init__(small)
    vars(small).update({k: v for k, v in vars(module).items() if k not in vars(small)})
    for seed, (name, sizes) in enumerate(LAYERS.items()):
        layer = nn.Linear(*sizes, bias=False)
        weights = torch.linspace(seed, 15, 15).sin_().view(layer.weight.shape)  # always the same
        layer.weight = nn.Parameter(weights, requires_grad=False)
        setattr(small, name, layer)
    small.act_fn = copy.deepcopy(module.act_fn)  # `train` changes it
    values = torch.linspace(-30, 40, 96).view(1, 32, 3)
    for activation in TORCH:
        fused = FusedForward(small, _gated_mlp, (activation, small.act_fn))
        if all(
            computes_same(small.train(training).forward, fused, values, rtol=1e-5, atol=1e-5)
            for training in (True, False)
        ):
            return activation
    return None


def _rms_norms(model: nn.Module) -> Iterator[FusedForward]:
    """Modules whose class is called so, and that compute the same: some add 1 to the weight."""
    if not simd.is_available():
        return
    for module in _unpatched(model):
        if not type(module).__name__.endswith("RMSNorm"):
            continue
        epsilon = next((name for name in EPSILONS if isinstance(vars(module).get(name), float)), "")
        if not epsilon:
            continue
        if [name for name, _ in module.named_parameters()] != ["weight"]:
            continue
        fused = FusedForward(module, _rms_norm, epsilon)
        values = torch.linspace(-2, 3, 2 * module.weight.numel()).view(1, 2, -1)
        if computes_same(module.forward, fused, values, rtol=1e-3, atol=1e-5):  # calls no hooks
            yield fused


def _unpatched(model: nn.Module) -> Iterator[nn.Module]:
    """Modules that have their class's forward pass."""
    return (module for module in model.modules() if "forward" not in vars(module))


def _set_forward(fused: FusedForward) -> None:
    fused.module.forward = fused


FUSED_TANH_GELUS = ObjectPatch(_tanh_gelus, _set_forward)
FUSED_GATED_MLPS = ObjectPatch(_gated_mlps, _set_forward)
FUSED_RMS_NORMS = ObjectPatch(_rms_norms, _set_forward)
