"""Pooling of hidden states to embeddings, and the format of embeddings as predictions."""

import base64
from collections.abc import Sequence

import torch


def pooled(hidden: torch.Tensor, tokens: torch.Tensor, pooling: str) -> torch.Tensor:
    """Pool hidden states to one embedding for each text, in fp32.

    Args:
        hidden: hidden states, shape (texts, length, width).
        tokens: mask, shape (texts, length): 0 for padding and other tokens that are not pooled.
        pooling: name of the pooling: mean or cls.
    """
    hidden = hidden.float()
    if pooling == "cls":
        return hidden[torch.arange(len(tokens)), tokens.argmax(1)]
    weights = tokens.float()
    counts = weights.sum(1, keepdim=True).clamp(min=1)
    return torch.bmm(weights.unsqueeze(1), hidden).squeeze(1) / counts


def encoded(embeddings: torch.Tensor) -> list[str]:
    """Return each embedding as base64 of its fp32 values."""
    return [base64.b64encode(row.numpy().tobytes()).decode("ascii") for row in embeddings]


def decoded(predictions: Sequence[str]) -> torch.Tensor:
    """Return the embeddings that `encoded` has encoded, shape (texts, width)."""
    whole = bytearray(b"".join(map(base64.b64decode, predictions)))
    return torch.frombuffer(whole, dtype=torch.float32).view(len(predictions), -1)
