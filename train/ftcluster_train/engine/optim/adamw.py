"""AdamW that clips gradients and rounds the weights for the model, all in one pass over memory."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from ftcluster_common.recipe import Training
from ftcluster_train.kernels import simd


def adamw_arguments(training: Training) -> dict[str, Any]:
    """The arguments of torch's AdamW."""
    return {
        "lr": training.learning_rate,
        "betas": (training.adam_beta1, training.adam_beta2),
        "eps": training.adam_epsilon,
        "fused": True,
    }


class AdamW(torch.optim.AdamW):  # type: ignore[misc]
    """torch's AdamW of contiguous fp32 weights: a loop in C, where this CPU has one.

    Args:
        copies: by weights, bf16 tensors that are copies of them after each step.

    Attributes:
        grad_scale: gradients are divided by it; None: by 1. They stay what they are with the loop.
    """

    grad_scale: torch.Tensor | None = None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        training: Training,
        copies: Mapping[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(groups, **adamw_arguments(training))
        self._copies = copies or {}

    def moments(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """What it keeps of the gradients; torch would make them in its first step."""
        moments: dict[str, torch.Tensor] = self.state[weights]
        if not moments:
            moments["step"] = torch.tensor(0.0)
            moments["exp_avg"] = torch.zeros_like(weights)
            moments["exp_avg_sq"] = torch.zeros_like(weights)
        return moments

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Update the weights by their gradients, and their copies."""
        if not simd.is_available():
            super().step()
            for weights, copy in self._copies.items():
                copy.copy_(weights)
            return
        for group in self.param_groups:
            for weights in group["params"]:
                self._step(weights, group)

    def _step(self, weights: torch.Tensor, group: Mapping[str, Any]) -> None:
        moments, rate = self.moments(weights), float(group["lr"])
        moments["step"] += 1
        number = float(moments["step"])
        beta1, beta2 = group["betas"]
        numbers = (
            1 - rate * group["weight_decay"],
            1 if self.grad_scale is None else 1 / float(self.grad_scale),
            beta1, 1 - beta1, beta2, 1 - beta2,
            rate / (1 - beta1**number),
            1 / math.sqrt(1 - beta2**number),
            group["eps"],
        )  # fmt: skip
        simd.adamw_(
            weights, weights.grad, moments["exp_avg"], moments["exp_avg_sq"],
            self._copies.get(weights), [*map(float, numbers)],
        )  # fmt: skip
