"""What is replaced in transformers, and what of a model does not fit."""

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ftcluster_train.fast.functions import attention
from ftcluster_train.fast.modules import fuse_when_trained
from ftcluster_train.fast.notices import say_once
from ftcluster_train.kernels.unread_rows import leave_out_unread

ATTENTION = "ftcluster"
# of transformers.activations; both are the tanh approximation of GELU
FUSED = ("NewGELUActivation", "FastGELUActivation")
ONE_KERNEL = ("GELUActivation", "GELUTanh", "SiLUActivation", "MishActivation", "LinearActivation")


def replace_in_models() -> None:
    """Fuse activations, and adapt and check each model that is made from now on."""
    from transformers import PreTrainedModel, activations

    for name in FUSED:
        getattr(activations, name).forward = _tanh_gelu
    post_init = PreTrainedModel.post_init

    @functools.wraps(post_init)
    def post_init_and_check(self: Any, *args: Any, **kwargs: Any) -> None:
        post_init(self, *args, **kwargs)
        leave_out_unread(self)
        fuse_when_trained(self)
        check_model(self)

    PreTrainedModel.post_init = post_init_and_check


def _tanh_gelu(_: nn.Module, values: torch.Tensor) -> torch.Tensor:
    return functional.gelu(values, approximate="tanh")


def check_model(model: nn.Module) -> None:
    """Say once what of a model is left as it is."""
    for module in model.modules():
        kind = type(module)
        own = kind.__module__ == "transformers.activations"
        if own and kind.__name__ not in (*FUSED, *ONE_KERNEL):
            say_once(f"the activation {kind.__name__} is left as it is")
    config: Any = getattr(model, "config", None)
    # transformers has no public name for it
    chosen = getattr(config, "_attn_implementation", None)
    if isinstance(chosen, str) and chosen not in ("sdpa", ATTENTION):
        say_once(
            f"a {config.model_type} model computes attention itself "
            f"(attn_implementation={chosen}), which is left as it is"
        )


def register_attention() -> None:
    """Make the attention known to transformers by its name, where it has such a register."""
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
    """As transformers' own for sdpa; the output's shape is (batch, length, heads, head size).

    Raises:
        ValueError: the model asks for what only other implementations compute.
    """
    for name in ("position_bias", "softcap", "cache"):
        if others.get(name) is not None:
            raise ValueError(f"attn_implementation={ATTENTION} has no {name}; take sdpa or eager")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    length = query.shape[2]
    causal = bool(causal) and attention_mask is None and length > 1
    if causal:  # a static cache has more keys
        key, value = key[:, :, :length], value[:, :, :length]
    output = attention(
        query, key, value, attention_mask, dropout, causal, scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return output.transpose(1, 2).contiguous(), None
