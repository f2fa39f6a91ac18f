"""The optimizer sharded over the ranks: each updates its pieces of the weights.

ZeRO's stage 2 (Rajbhandari et al. 2019): reduce-scatter of gradients, AdamW on this rank's pieces,
all-gather of weights in the dtype that the model runs in, beside the next forward pass.
"""

import math

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from ftcluster_common.recipe import Training
from ftcluster_train.engine.optim.adamw import AdamW
from ftcluster_train.engine.optim.flat_step import norm_of
from ftcluster_train.engine.optim.gradient_buckets import CONTROL_FLAGS
from ftcluster_train.engine.optim.sharded_gradients import ShardedGradients
from ftcluster_train.engine.optim.sharded_weights import Bucket, ShardedWeights
from ftcluster_train.engine.optim.state import Part, State


class ShardedOptimizerStep:
    """AdamW on this rank's pieces of the weights; methods as in OptimizerStep.

    Args:
        model: in fp32; its parameters are in `dtype` afterwards.
        rounds: the most micro-batches of a rank in a step.
    """

    def __init__(
        self, model: PreTrainedModel, training: Training, dtype: torch.dtype, rounds: int
    ) -> None:
        self._model = model
        self.weights = ShardedWeights(model, dtype, training.ddp_bucket_cap_mb)
        self.pending_gathers = self.weights.pending_gathers
        self.gradients = ShardedGradients(self.weights, training.gradient_dtype, rounds)
        self.control_flags, self.traffic = torch.zeros(CONTROL_FLAGS), self.weights.traffic
        self._max_norm, self._norm = training.max_grad_norm, 0.0
        for master, gradients in zip(self.weights.masters, self.gradients.sums, strict=True):
            master.grad = gradients
        border = self.weights.layout.decayed
        self._groups = [  # numbers of the buckets, in the order of the flat tensor
            [
                n
                for n in self.weights.flat_order
                if (self._bucket(n).place.start < border) == decayed
            ]
            for decayed in (True, False)
        ]
        groups = [
            {"params": [self.weights.masters[n] for n in numbers], "weight_decay": decay}
            for numbers, decay in zip(self._groups, (training.weight_decay, 0.0), strict=True)
            if numbers
        ]
        self.adamw = AdamW(groups, training)

    def backward(self, loss: torch.Tensor, last: bool) -> None:  # noqa: ARG002 - each is sent
        self.gradients.start_backward()
        loss.backward()
        self.gradients.finish_backward()

    def step(self) -> float:
        squares = sum(float(norm_of(own)) ** 2 for own in self.gradients.wait())
        sums = torch.tensor([squares, *self.control_flags.tolist()], dtype=torch.float64)
        self.traffic.add(sums.nbytes, dist.get_world_size(), passes=2)
        with self.traffic:
            dist.all_reduce(sums)
        self.control_flags.copy_(sums[1:])
        self._norm = math.sqrt(sums[0])
        if not math.isfinite(self._norm):
            return self._norm
        if self._max_norm > 0:  # AdamW divides gradients by grad_scale while it reads them
            self.adamw.grad_scale = torch.tensor(max(1.0, self._norm / self._max_norm))
        self.pending_gathers.wait()  # of parameters that the model has not read
        self.adamw.step()
        self.weights.start_gather()
        return self._norm

    def synchronize(self) -> None:
        pass

    def digest(self) -> str:
        return self.weights.digest()

    def gradients_digest(self) -> str:
        """Their norm: each rank has other gradients."""
        return self._norm.hex()

    def state(self) -> State:
        def parts(tensors: dict[int, torch.Tensor]) -> list[Part]:
            return [Part(own, self._bucket(n).length, sharded=True) for n, own in tensors.items()]

        masters = self.weights.masters
        found = {"master_weights": parts({n: masters[n] for n in self.weights.flat_order})}
        for group, numbers in enumerate(filter(None, self._groups)):
            moments = {n: self.adamw.moments(masters[n]) for n in numbers}
            for name in ("exp_avg", "exp_avg_sq"):
                found[f"{name}_{group}"] = parts({n: moments[n][name] for n in numbers})
        for number, buffer in enumerate(self.weights.saved_buffers):
            found[f"buffer_{number}"] = [Part(buffer, buffer.numel(), sharded=False)]
        return State(found)

    def state_loaded(self, step: int) -> None:
        for moments in self.adamw.state.values():
            moments["step"].fill_(step)
        self.weights.start_gather()

    def detach(self, wanted: bool = True) -> PreTrainedModel:
        self.weights.detach(wanted)
        return self._model

    def attach(self) -> None:
        self.weights.attach()

    def _bucket(self, number: int) -> Bucket:
        return self.weights.buckets[number]
