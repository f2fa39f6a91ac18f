"""The last layer of a causal model, which need not compute logits where the loss has its weight."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.registry import has_hooks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# hidden states this large show a cap that hardly changes the logits of random weights
SOFTCAP_PROBE = 1e3


@torch.no_grad()  # type: ignore[untyped-decorator]
def find_head(model: "PreTrainedModel") -> torch.Tensor | None:
    """Models whose logits are hidden states times one weight, which is tried out.

    Returns that weight, of shape (vocabulary, hidden size), for `KernelMode`'s `head`; None where
    logits are more, for example capped, or hooks see them. A constant factor is no obstacle, as the
    hidden states have it too.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or layer.bias is not None or has_hooks(layer):
        return None
    model.eval()
    tokens = torch.arange(8).unsqueeze(0) % layer.out_features

    def forward(kernels: KernelMode) -> torch.Tensor:
        bf16 = layer.weight.dtype == torch.bfloat16
        with kernels, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
        return logits

    logits = forward(KernelMode())
    try:
        hidden = forward(KernelMode(head=layer.weight))
        large = forward(KernelMode(head=layer.weight, head_factor=SOFTCAP_PROBE))
    except Exception:  # its own code has more to do with the logits
        return None
    if hidden.shape != (*logits.shape[:-1], layer.in_features):
        return None
    if logits.shape[-1] != layer.out_features:
        return None
    hidden = hidden.to(logits.dtype)
    rounded = 4 * torch.finfo(logits.dtype).eps
    rtol, atol = max(1e-3, rounded), max(1e-4, rounded * float(logits.abs().max()))
    same = torch.allclose(hidden @ layer.weight.T, logits, rtol=rtol, atol=atol)
    linear = torch.allclose(large.to(hidden.dtype), hidden * SOFTCAP_PROBE, rtol=rtol)
    return layer.weight if same and linear else None
