"""Trains some rows of an embedding and freezes the others, like peft's `trainable_token_indices`.

Before each use of the frozen weight, the current values of the trained rows are written into it, so
that all kernels use these values. The functions in this module add only the gradients of the
trained rows. A gradient of the whole weight would need as much time and memory as training all
rows.
"""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class TokenRows:
    """The trained rows of an embedding, or of an output layer.

    Attributes:
        ids: token ids of the trained rows in ascending order, shape (tokens,).
        values: current values of the trained rows, shape (tokens, features).
    """

    ids: torch.Tensor
    values: torch.nn.Parameter

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def write_into(self, weight: torch.Tensor) -> None:
        """Replace the rows of a frozen weight by their trained values."""
        # Writing to `data` keeps the weight's version: a pending backward pass may still need it.
        weight.data[self.ids] = self.values.data.to(weight.dtype)

    def of_lookup(
        self, output: torch.Tensor, tokens: torch.Tensor, padding: int = -1
    ) -> torch.Tensor:
        """Return the output of an embedding, connected so that gradients reach the trained rows.

        Args:
            output: rows that the embedding returned, shape (..., features).
            tokens: token ids that were looked up, shape (...).
            padding: token id whose row gets no gradient.
        """
        connected: torch.Tensor = _OfLookup.apply(output, self.values, tokens, self.ids, padding)
        return connected

    def of_logits(self, logits: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of an output layer, connected so that gradients reach the trained rows.

        Args:
            logits: output of the output layer, shape (..., vocabulary).
            hidden: input of the output layer, shape (..., features).
        """
        connected: torch.Tensor = _OfLogits.apply(logits, self.values, hidden.detach(), self.ids)
        return connected


class _OfLookup(torch.autograd.Function):  # type: ignore[misc]
    """An identity function whose backward pass sums the gradients of each trained row."""

    kernel = ""

    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, values: torch.Tensor, tokens: torch.Tensor,
        ids: torch.Tensor, padding: int,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(tokens, ids, values)
        ctx.padding = padding
        return output.view_as(output)

    @staticmethod
    def backward(
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, None, None, None]:
        tokens, ids, values = ctx.saved_tensors
        tokens = tokens.flatten()
        places = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
        is_trained = (ids[places] == tokens) & (tokens != ctx.padding)
        gradients = grad_output.reshape(len(tokens), -1)[is_trained].float()
        sums = torch.zeros(values.shape, dtype=torch.float32, device="cpu")
        sums.index_add_(0, places[is_trained], gradients)
        passed = grad_output if ctx.needs_input_grad[0] else None
        return passed, sums.to(values.dtype), None, None, None


class _OfLogits(torch.autograd.Function):  # type: ignore[misc]
    """An identity function whose backward pass computes the gradients of the trained rows."""

    kernel = ""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(hidden, ids, values)
        return logits.view_as(logits)

    @staticmethod
    def backward(
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        hidden, ids, values = ctx.saved_tensors
        columns = grad_output[..., ids].reshape(-1, len(ids)).float()
        gradient = columns.T @ hidden.reshape(len(columns), -1).float()
        return grad_output, gradient.to(values.dtype), None, None
