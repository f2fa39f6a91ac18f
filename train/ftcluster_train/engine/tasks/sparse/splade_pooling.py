"""SPLADE's pooling, computed without keeping the logits of all tokens in memory.

log(1 + relu(x)) is monotonic, so its largest value over a text's tokens follows from the largest
logit. The forward pass computes the logits of a few texts at once. For each text and each token of
the vocabulary, it keeps only the largest logit and its position. The backward pass needs only the
head's weights for elements above 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ftcluster_kernels.cross_entropy import chunk_size

AT_ONCE = 4096  # number of vector elements whose gradients are computed at once


class _LargestLogits(torch.autograd.Function):  # type: ignore[misc]
    """Computes the vectors of texts, in fp32, shape (texts, vocabulary)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
        lengths: Sequence[int],
    ) -> torch.Tensor:  # fmt: skip
        vectors = torch.empty(len(lengths), len(weight))
        places = torch.empty(len(lengths), len(weight), dtype=torch.int32)
        for texts, rows in _chunks(lengths, chunk_size(len(weight))):
            logits = torch.mm(hidden[rows], weight.t())
            begin = rows.start
            for text, of_text in zip(
                range(texts.start, texts.stop), logits.split(lengths[texts]), strict=True
            ):
                largest, place = of_text.max(0)
                vectors[text], places[text] = largest, place + begin
                begin += len(of_text)
            del logits  # otherwise the logits of two chunks would be in memory
        if bias is not None:
            vectors += bias
        vectors.relu_().log1p_()
        ctx.save_for_backward(hidden, weight, bias, vectors, places)
        return vectors

    @staticmethod
    def backward(
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None]:
        hidden, weight, bias, vectors, places = ctx.saved_tensors
        # the derivative of log(1 + x) is 1 / (1 + x) = exp(-vector)
        gradients = (grad_output * torch.exp(-vectors)).masked_fill_(vectors == 0, 0)
        grad_hidden = torch.zeros(hidden.shape, dtype=torch.float32)
        _, needs_weight, needs_bias, _ = ctx.needs_input_grad  # beside adapters, both are frozen
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32) if needs_weight else None
        for of_text, place in zip(gradients, places, strict=True):
            for tokens in of_text.nonzero().squeeze(1).split(AT_ONCE):
                rows, factors = place[tokens], of_text[tokens].unsqueeze(1)
                grad_hidden.index_add_(0, rows, factors * weight[tokens])
                if grad_weight is not None:
                    grad_weight.index_add_(0, tokens, factors * hidden[rows])
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        grad_bias = gradients.sum(0).to(bias.dtype) if needs_bias else None
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None


def _chunks(lengths: Sequence[int], limit: int) -> Iterator[tuple[slice, slice]]:
    """Yield ranges of texts (at most `limit` tokens or a single text), and of their tokens."""
    first = begin = end = 0
    for text, length in enumerate(lengths):
        if text > first and end + length - begin > limit:
            yield slice(first, text), slice(begin, end)
            first, begin = text, end
        end += length
    if lengths:
        yield slice(first, len(lengths)), slice(begin, end)


def splade_vectors(
    hidden: torch.Tensor, tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the sparse vector of each text, in fp32, shape (texts, vocabulary).

    Args:
        hidden: input of the last layer, shape (texts, length, width).
        tokens: mask of the tokens, shape (texts, length); 0 for padding.
        weight: weight of the last layer, shape (vocabulary, width).
        bias: bias of the last layer; None if it has no bias.
    """
    pooled = tokens.bool()
    with torch.autocast("cpu", enabled=False):
        of_tokens = hidden[pooled].to(weight.dtype)
        vectors: torch.Tensor = _LargestLogits.apply(
            of_tokens, weight, bias, pooled.sum(1).tolist()
        )
    return vectors


def pooled_logits(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the vectors of texts from the logits of all tokens.

    It is used for models that cannot return hidden states instead of logits.

    Args:
        logits: logits of all tokens, shape (texts, length, vocabulary).
        tokens: mask of the tokens, shape (texts, length); 0 for padding.
    """
    hidden = logits.float().masked_fill(tokens.unsqueeze(-1) == 0, 0)
    return hidden.relu().max(1).values.log1p()
