"""The cross entropy of a large vocabulary without its logits in fp32.

transformers keeps the logits of all tokens in bf16 and in fp32, their log-softmax and its gradient:
1.6 GB for 2,048 tokens of GPT-2. Here the logits are in bf16 only, and are replaced by their own
gradient some rows at a time, which stay in the cache.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from ftcluster_train.kernels.function_overrides import FunctionOverrides

ROWS = 16  # tokens at once: 3 MB of fp32 with GPT-2's vocabulary
LOUD = 1e3  # hidden states this large show a cap that hardly changes the logits of random weights
ALIGNMENT = 64  # columns: rows that begin on a cache line make the products up to a third faster


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        vocab_size = len(weight)
        padded = _with_aligned_rows(weight)
        logits = hidden @ padded.T
        losses = torch.empty(len(tokens))
        for begin in range(0, len(tokens), ROWS):
            rows = slice(begin, begin + ROWS)
            part, targets = logits[rows].float(), tokens[rows].unsqueeze(1)
            part[:, vocab_size:] = -torch.inf
            part.sub_(part.amax(-1, keepdim=True))
            losses[rows] = -part.gather(1, targets).squeeze(1)
            total = part.exp_().sum(-1, keepdim=True)
            losses[rows] += total.squeeze(1).log()
            # the gradient: softmax - one_hot(targets)
            part.div_(total).scatter_add_(1, targets, torch.full(targets.shape, -1.0))
            logits[rows] = part
        ctx.save_for_backward(hidden, padded, logits)
        ctx.vocab_size = vocab_size
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        hidden, padded, grad_logits = ctx.saved_tensors
        grad_hidden = (grad_logits @ padded).mul_(grad_output)
        grad_weight = grad_logits.T @ (hidden * grad_output)
        return grad_hidden, grad_weight[: ctx.vocab_size], None


def _with_aligned_rows(weight: torch.Tensor) -> torch.Tensor:
    """The weight with a multiple of ALIGNMENT rows; nothing may depend on those added.

    They are what follows the weight in memory, usually the next parameter; a copy where it is last.
    """
    added = -len(weight) % ALIGNMENT
    room = weight.untyped_storage().nbytes() // weight.itemsize - weight.storage_offset()
    if weight.is_contiguous() and room >= weight.numel() + added * weight.shape[1]:
        return weight.as_strided((len(weight) + added, weight.shape[1]), weight.stride())
    return functional.pad(weight, (0, 0, 0, added))


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """The sum of the cross entropies of the logits `hidden @ weight.T`, in fp32.

    Args:
        hidden: shape (tokens, hidden size).
        weight: shape (vocabulary, hidden size).
        tokens: the targets, shape (tokens,).
    """
    with torch.autocast("cpu", enabled=False):
        # some models keep their residuals in fp32 whatever the dtype of their weights
        loss: torch.Tensor = _LinearCrossEntropy.apply(hidden.to(weight.dtype), weight, tokens)
    return loss


@torch.no_grad()  # type: ignore[untyped-decorator]
def find_head(model: PreTrainedModel) -> torch.Tensor | None:
    """The weight of a causal model's last layer, of shape (vocabulary, hidden size).

    None where the logits are more than hidden states times that weight, for example capped. That is
    tried out; a constant factor is no obstacle, as the hidden states have it too.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or layer.bias is not None:
        return None
    model.eval()
    tokens = torch.arange(8).unsqueeze(0) % layer.out_features
    logits = model(input_ids=tokens, use_cache=False).logits
    with FunctionOverrides(head=layer.weight):
        hidden = model(input_ids=tokens, use_cache=False).logits
    if hidden.shape[-1] != layer.in_features:
        return None
    with FunctionOverrides({functional.linear: _loud_linear(layer.weight)}):
        loud = model(input_ids=tokens, use_cache=False).logits
    same = torch.allclose(hidden @ layer.weight.T, logits, rtol=1e-3, atol=1e-4)
    linear = torch.allclose(loud, hidden * LOUD, rtol=1e-3)
    return layer.weight if same and linear else None


def _loud_linear(head: torch.Tensor) -> Callable[..., torch.Tensor]:
    def linear(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return input * LOUD if weight is head else functional.linear(input, weight, bias)

    return linear
