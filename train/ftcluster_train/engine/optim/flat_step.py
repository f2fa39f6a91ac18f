"""One optimizer on each rank, with all weights: every rank takes the same steps."""

import hashlib

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from ftcluster_common.recipe import Training
from ftcluster_train.engine.optim.adamw import AdamW
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.optim.flat_params import FlatWeights, PendingGathers
from ftcluster_train.engine.optim.gradient_buckets import GradientBuckets
from ftcluster_train.engine.optim.state import State

NORM_BLOCK = 1 << 16  # elements whose squares are summed at once


class FlatOptimizerStep(OptimizerStep):
    """AdamW on one flat fp32 tensor with all weights.

    Args:
        model: in fp32; its parameters are in `dtype` afterwards.
        world_size: ranks of the group.
        group: the ranks that step together; default: all ranks.
    """

    def __init__(
        self, model: PreTrainedModel, training: Training, dtype: torch.dtype, world_size: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        self._model = model
        self.weights = FlatWeights(model, dtype)
        bf16 = training.gradient_dtype == "bf16" and group is None
        bucket_mb = training.ddp_bucket_cap_mb
        self.gradients = GradientBuckets(self.weights, world_size, bf16, group, bucket_mb)
        self.control_flags, self.traffic = self.gradients.control_flags, self.gradients.traffic
        self.pending_gathers = PendingGathers()
        self._max_norm = training.max_grad_norm
        flat, border = self.weights.master_weights, self.weights.layout.decayed
        groups, copies = [], {}
        for part, decay in ((slice(border), training.weight_decay), (slice(border, None), 0.0)):
            weights = flat[part]
            if len(weights):
                weights.grad = self.gradients.flat[part]
                groups.append({"params": [weights], "weight_decay": decay})
                if self.weights.model_weights is not flat:
                    copies[weights] = self.weights.model_weights[part]
        self.adamw = AdamW(groups, training, copies)

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        self.gradients.start_backward(last)
        loss.backward()

    def step(self) -> float:
        norm = self._norm()
        if not norm.isfinite():
            return float(norm)
        if self._max_norm > 0:  # AdamW divides gradients by grad_scale while it reads them
            self.adamw.grad_scale = (norm / self._max_norm).clamp(min=1.0)
        self.adamw.step()
        return float(norm)

    def _norm(self) -> torch.Tensor:
        """The 2-norm of the gradients of the ranks that step together."""
        return norm_of(self.gradients.wait())

    def digest(self) -> str:
        return self.weights.digest()

    def gradients_digest(self) -> str:
        return hashlib.sha256(self.gradients.flat.numpy()).hexdigest()

    def state(self) -> State:
        return State.of(self._tensors())

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {"master_weights": self.weights.master_weights}
        for number, group in enumerate(self.adamw.param_groups):
            (weights,) = group["params"]
            moments = self.adamw.moments(weights)
            tensors |= {f"{name}_{number}": moments[name] for name in ("exp_avg", "exp_avg_sq")}
        buffers = enumerate(self.weights.saved_buffers)
        return tensors | {f"buffer_{number}": buffer for number, buffer in buffers}

    def state_loaded(self, step: int) -> None:
        for moments in self.adamw.state.values():
            moments["step"].fill_(step)
        self.weights.copy_to_model()

    def detach(self, wanted: bool = True) -> PreTrainedModel:
        if wanted:
            self.weights.detach()
        return self._model

    def attach(self) -> None:
        self.weights.attach()


def norm_of(flat: torch.Tensor) -> torch.Tensor:
    """The 2-norm of a long fp32 tensor, from the norms of its blocks.

    torch's single sum of squares loses 0.15 % at 22 million elements, 2.3 % at 355 million.
    """
    whole = len(flat) // NORM_BLOCK * NORM_BLOCK
    blocks = torch.linalg.vector_norm(flat[:whole].view(-1, NORM_BLOCK), dim=1)
    rest = torch.linalg.vector_norm(flat[whole:]).unsqueeze(0)
    return torch.linalg.vector_norm(torch.cat([blocks, rest]))
