"""A model's norms, gated MLPs and rotary positions, which are modules of its own."""

from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from ftcluster_train.kernels import simd

_fused: WeakSet[nn.Module] = WeakSet()


def fuse_when_trained(model: nn.Module) -> None:
    """Have a model's modules compute with our kernels from its first training step on.

    Not before, because what they compute is compared with random values, and a new model's weights
    are not there yet. Evaluations are left as they are, but for rotary positions.
    """
    if _fuse not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_fuse)


class _InTraining:
    """The forward pass of a module, which has another one for evaluations: its class's."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._fused = module, module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return self._fused(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)


def _fuse(model: nn.Module, _: Any) -> None:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or model in _fused:
        return
    _fused.add(model)
    # they import transformers, which has been imported now
    from ftcluster_train.kernels.fuse_activations import fuse_gated_mlps
    from ftcluster_train.kernels.rms_norm import fuse_rms_norms
    from ftcluster_train.kernels.rotary import fuse_rotary

    own = {module for module in model.modules() if "forward" in vars(module)}
    fuse_rms_norms(model)
    fuse_gated_mlps(model)
    if simd.is_available():
        fuse_rotary(model)
    for module in model.modules():
        if "forward" in vars(module) and module not in own:
            module.forward = _InTraining(module)
