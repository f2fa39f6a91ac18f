"""The cross entropy of a large vocabulary without its logits in fp32.

transformers holds the logits of all tokens in bf16 and in fp32, their logarithmic softmax and its
gradient: 1.6 GB for 2,048 tokens of GPT-2. Here the logits are in bf16 only, and become their own
gradient some rows at a time, which stay in the cache.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from ftcluster_train.kernels.function_overrides import Kernels

ROWS = 16  # tokens at once: 3 MB of fp32 with GPT-2's vocabulary
LOUD = 1e3  # a cap that hardly bends the logits of random weights shows with such hidden states
ALIGNED = 64  # columns: rows that begin on a cache line make the products up to a third faster


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        vocabulary = len(weight)
        padded = functional.pad(weight, (0, 0, 0, -vocabulary % ALIGNED))
        logits = hidden @ padded.T
        losses = torch.empty(len(tokens))
        for begin in range(0, len(tokens), ROWS):
            rows = slice(begin, begin + ROWS)
            part, wanted = logits[rows].float(), tokens[rows].unsqueeze(1)
            part[:, vocabulary:] = -torch.inf
            part.sub_(part.amax(-1, keepdim=True))
            losses[rows] = -part.gather(1, wanted).squeeze(1)
            total = part.exp_().sum(-1, keepdim=True)
            losses[rows] += total.squeeze(1).log()
            part.div_(total).scatter_add_(1, wanted, torch.full(wanted.shape, -1.0))
            logits[rows] = part
        ctx.save_for_backward(hidden, padded, logits)
        ctx.vocabulary = vocabulary
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        hidden, padded, of_logits = ctx.saved_tensors
        of_hidden = (of_logits @ padded).mul_(scale)
        of_weight = of_logits.T @ (hidden * scale)
        return of_hidden, of_weight[: ctx.vocabulary], None


def cross_entropy_of_hidden(
    hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """The sum of the cross entropies of `hidden @ weight.T`, in fp32, with what is wanted.

    Args:
        hidden: of shape (tokens, hidden size).
        weight: of shape (vocabulary, hidden size).
        tokens: of shape (tokens,), numbers of the vocabulary.
    """
    with torch.autocast("cpu", enabled=False):
        # some models keep their residuals in fp32 whatever their weights are in
        loss: torch.Tensor = _CrossEntropy.apply(hidden.to(weight.dtype), weight, tokens)
    return loss


@torch.no_grad()  # type: ignore[untyped-decorator]
def find_head(model: PreTrainedModel) -> torch.Tensor | None:
    """The weight of a causal model's last layer, of shape (vocabulary, hidden size).

    None where its logits are not just hidden states times that weight, which is tried out: some
    architectures bend them. A factor that they have is one of the hidden states as well.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or layer.bias is not None:
        return None
    model.eval()
    tokens = torch.arange(8).unsqueeze(0) % layer.out_features
    logits = model(input_ids=tokens, use_cache=False).logits
    with Kernels(head=layer.weight):
        hidden = model(input_ids=tokens, use_cache=False).logits
    if hidden.shape[-1] != layer.in_features:
        return None
    with Kernels({functional.linear: _linear_loud(layer.weight)}):
        loud = model(input_ids=tokens, use_cache=False).logits
    same = torch.allclose(hidden @ layer.weight.T, logits, rtol=1e-3, atol=1e-4)
    straight = torch.allclose(loud, hidden * LOUD, rtol=1e-3)
    return layer.weight if same and straight else None


def _linear_loud(head: torch.Tensor) -> Callable[..., torch.Tensor]:
    def linear(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return input * LOUD if weight is head else functional.linear(input, weight, bias)

    return linear
