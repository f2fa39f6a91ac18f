"""Replaces parts of models in users' scripts with kernels, and reports unsupported parts."""

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ftcluster_train.patching.patch_model import functions_of, kernels_in_use, parts_without_kernel
from ftcluster_train.patching.position_bias import POSITION_BIAS
from ftcluster_train.patching.registry import FunctionPatch, always, call_after, report_once
from ftcluster_train.patching.script_functions import attention
from ftcluster_train.patching.shared_entries import (
    EXACT_MLPS,
    FUSED_RMS_NORMS,
    ROTARY_POSITIONS,
    TANH_GELUS,
    tanh_gelu,
)
from ftcluster_train.patching.skipped_rows import (
    SKIPPED_ROWS,
    reads_only_first_token,
    why_not_skipped,
)
from ftcluster_train.patching.unpadding import UNPADDING

ATTENTION = "ftcluster"
# activations of transformers that only call one of torch's functions
ONE_KERNEL = ("GELUActivation", "GELUTanh", "SiLUActivation", "MishActivation", "LinearActivation")

_fused: WeakSet[nn.Module] = WeakSet()
_first_steps: dict[nn.Module, RemovableHandle] = {}  # hooks of models in their first step


def patch_transformers() -> None:
    """Fuse activations of all models, and patch each model that is created from now on."""
    from transformers import PreTrainedModel

    for patch in activation_patches():
        patch.owner.forward = patch.function()
    call_after(PreTrainedModel, "post_init", patch_script_model)
    # copies and unpickled models have no patches
    call_after(PreTrainedModel, "__setstate__", patch_script_model)


def activation_patches() -> list[FunctionPatch]:
    """Return the entries for the forward passes of transformers' activations."""
    from transformers import activations

    kinds = [getattr(activations, name) for name in TANH_GELUS]
    return [FunctionPatch(kind, kind.forward, always, tanh_gelu) for kind in kinds]


def patch_script_model(model: nn.Module) -> None:
    """Skip a model's unread rows, fuse its modules, and report unsupported parts.

    The modules use our kernels from the first training step on. They are not fused earlier, because
    a new model's weights may not be loaded yet, and the guards compare the results of the modules.
    Evaluation stays unchanged, except for rotary positions.
    """
    SKIPPED_ROWS.apply(model)
    if reads_only_first_token(model):
        UNPADDING.apply(model)
    if _fuse not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_fuse)
    check_model(model)


class _InTraining:
    """A module's forward pass in training; evaluation uses the class's own forward pass.

    If the class's forward pass has changed since the guard compared it with the kernel, training
    uses the class's forward pass too.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self.fused = module, module.forward
        self._compared = type(module).forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = type(self._module).forward
        same = forward is self._compared
        if same and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return self.fused(*args, **kwargs)
        return forward(self._module, *args, **kwargs)


def _fuse(model: nn.Module, _: Any) -> None:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or model in _fused:
        return
    _fused.add(model)
    patched_before = {module for module in model.modules() if "forward" in vars(module)}
    for patch in (FUSED_RMS_NORMS, EXACT_MLPS, ROTARY_POSITIONS, POSITION_BIAS):
        patch.apply(model)
    for module in model.modules():
        if "forward" in vars(module) and module not in patched_before:
            module.forward = _InTraining(module)
    _report_kernels_after_step(model)


def _report_kernels_after_step(model: nn.Module) -> None:
    """Make a model, but not its parts, report the kernels in use after its next forward pass."""
    if not any(part is model for whole in list(_first_steps) for part in whole.modules()):
        _first_steps[model] = model.register_forward_hook(_tell, always_call=True)


def _tell(model: nn.Module, _: Any, output: Any) -> None:
    """Report the kernels in use; `output` is the model's output, or None if the model failed."""
    handle = _first_steps.pop(model, None)
    if handle is None:  # another thread called the same model
        return
    handle.remove()
    values = output.values() if isinstance(output, Mapping) else output
    parts = [values] if isinstance(values, torch.Tensor) else values or ()
    computed = (part for part in parts if isinstance(part, torch.Tensor) and part.grad_fn)
    first = next(computed, None)
    # reentrant gradient checkpoints hide the functions that they compute
    if first is not None and "CheckpointFunctionBackward" not in functions_of(first):
        used = kernels_in_use(first, model)
        report_once(f"kernels in use: {', '.join(used) or 'none'}")
        if unsupported := parts_without_kernel(model, used):
            report_once(unsupported)


def check_model(model: nn.Module) -> None:
    """Report once the parts of a model that stay unchanged."""
    if why := why_not_skipped(model):
        report_once(why)
    for module in model.modules():
        kind = type(module)
        is_activation = kind.__module__ == "transformers.activations"
        if is_activation and kind.__name__ not in (*TANH_GELUS, *ONE_KERNEL):
            report_once(
                f"the activation {kind.__name__} uses its own code, because it has no kernel"
            )


def register_attention() -> None:
    """Register our attention in transformers as "ftcluster", if transformers supports that."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError:  # before 4.54
        return
    AttentionInterface.register(ATTENTION, attention_forward)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention with the arguments and results of transformers' sdpa.

    The output's shape is (batch, length, heads, head size).

    Raises:
        ValueError: the model needs an option that only other implementations support.
    """
    for name in ("position_bias", "softcap", "cache"):
        if others.get(name) is not None:
            raise ValueError(
                f"attn_implementation={ATTENTION} does not support {name}; use sdpa or eager"
            )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    length = query.shape[2]
    causal = bool(causal) and attention_mask is None and length > 1
    if causal:  # a static cache has room for more keys
        key, value = key[:, :, :length], value[:, :, :length]
    output = attention(
        query, key, value, attention_mask, dropout, causal, scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return output.transpose(1, 2).contiguous(), None
