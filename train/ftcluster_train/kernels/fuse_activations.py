"""Makes a model's activations, and MLPs that are gated by one, compute with `activations`."""

import copy

import torch
from torch import nn
from transformers import activations

from ftcluster_train.kernels.activations import TORCH, activate

# both are the tanh approximation of GELU, in eight passes
TANH_GELU = (activations.NewGELUActivation, activations.FastGELUActivation)
# what gated MLPs call their layers, and inputs and outputs of small ones
LAYERS = {"gate_proj": (3, 5), "up_proj": (3, 5), "down_proj": (5, 3)}
GATED = {*LAYERS, "act_fn"}


class TanhGelu(nn.Module):  # type: ignore[misc]
    """The same in one kernel."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Of any shape."""
        return activate("tanh_gelu", values)


def fuse_activations(model: nn.Module) -> int:
    """Replace GELUs by `TanhGelu`, and what `fuse_gated_mlps` does; returns how many."""
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in TANH_GELU
    ]
    for parent, name in found:
        setattr(parent, name, TanhGelu())
    return len(found) + fuse_gated_mlps(model)


def fuse_gated_mlps(model: nn.Module) -> int:
    """Replace the forward passes of MLPs that are gated by an activation; returns how many."""
    count = 0
    for module in model.modules():
        name = _gate_of(module)
        if name is not None:
            module.forward = _GatedMlp(module, name)
            count += 1
    return count


class _GatedMlp:
    """The forward pass of a module, which keeps its layers and the names of them."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        (x,) = (*inputs, *named.values())
        module = self._module
        hidden: torch.Tensor = module.down_proj(
            activate(self._name, module.gate_proj(x), module.up_proj(x))
        )
        return hidden


def _gate_of(module: nn.Module) -> str | None:
    """The activation of a gated MLP; None of a module that computes anything else.

    It is tried with small layers in place of the module's own: others also cut, scale or drop.
    """
    own = vars(module)
    if own["_modules"].keys() != GATED or own["_parameters"] or "forward" in own:
        return None
    small: nn.Module = object.__new__(type(module))
    nn.Module.__init__(small)
    vars(small).update({k: v for k, v in own.items() if k not in vars(small)})
    for seed, (name, sizes) in enumerate(LAYERS.items()):
        layer = nn.Linear(*sizes, bias=False)
        weights = torch.linspace(seed, 15, 15).sin_().view(layer.weight.shape)  # always the same
        layer.weight = nn.Parameter(weights, requires_grad=False)
        setattr(small, name, layer)
    small.act_fn = copy.deepcopy(module.act_fn)  # `train` changes it
    values = torch.linspace(-30, 40, 96).view(1, 32, 3)
    for name in TORCH:
        if all(_is_one(small.train(training), name, values) for training in (True, False)):
            return name
    return None


@torch.no_grad()  # type: ignore[untyped-decorator]
def _is_one(module: nn.Module, name: str, values: torch.Tensor) -> bool:
    with torch.random.fork_rng(devices=[]):
        try:
            expected, found = module(values), _GatedMlp(module, name)(values)
            return bool(torch.allclose(found, expected, rtol=1e-5, atol=1e-5))
        except Exception:  # another class may ask for anything, and return anything
            return False
