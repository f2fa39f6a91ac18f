"""Pooling of hidden states to embeddings, and the format of embeddings as predictions."""

import base64
from collections.abc import Sequence

import torch


def pooled(hidden: torch.Tensor, tokens: torch.Tensor, pooling: str) -> torch.Tensor:
    """Pool hidden states to one embedding for each text, in fp32.

    Args:
        hidden: hidden states, shape (texts, length, width).
        tokens: mask of the tokens, shape (texts, length); 0 for padding and other tokens that are
            not pooled.
        pooling: sentence-transformers' name of the pooling method. cls and lasttoken select the
            first and the last pooled token. max selects the largest value of each feature. mean
            divides the sum of the tokens by their number, and mean_sqrt_len_tokens divides it by
            the square root of their number. weightedmean is a mean in which each token is weighted
            by its position, counted from 1 (Muennighoff 2022, SGPT).
    """
    hidden = hidden.float()
    length = hidden.shape[1]
    if pooling == "cls":
        return hidden[torch.arange(len(tokens)), tokens.argmax(1)]
    if pooling == "lasttoken":
        return hidden[torch.arange(len(tokens)), length - 1 - tokens.flip(1).argmax(1)]
    if pooling == "max":
        return hidden.masked_fill(tokens.unsqueeze(-1) == 0, -torch.inf).amax(1)
    weights = tokens.float()
    if pooling == "weightedmean":
        weights = weights * torch.arange(1, length + 1)
    divisors = weights.sum(1, keepdim=True).clamp(min=1)
    if pooling == "mean_sqrt_len_tokens":
        divisors = divisors.sqrt()
    return torch.bmm(weights.unsqueeze(1), hidden).squeeze(1) / divisors


def encoded(embeddings: torch.Tensor) -> list[str]:
    """Return each embedding as base64 of its fp32 values."""
    return [base64.b64encode(row.numpy().tobytes()).decode("ascii") for row in embeddings]


def decoded(predictions: Sequence[str]) -> torch.Tensor:
    """Decode embeddings from the format of `encoded`, shape (texts, width)."""
    whole = bytearray(b"".join(map(base64.b64decode, predictions)))
    return torch.frombuffer(whole, dtype=torch.float32).view(len(predictions), -1)


def count_of(text: str) -> int:
    """Return the number of fp32 values in base64.

    >>> count_of(encoded(torch.ones(1, 5))[0])
    5
    """
    return len(text) * 3 // 16
