"""Local steps: each host trains alone, and the hosts exchange what they have learned now and then.

DiLoCo (Douillard et al. 2023): after a number of local steps the difference between the common
weights of the last exchange and a worker's own is its outer gradient. Their mean over the workers
is the gradient of an outer step of SGD with Nesterov's momentum, which gives the next common
weights. The exchange is under way while the workers compute the next steps; what they have learned
meanwhile is added to its result (as in Streaming DiLoCo, Douillard et al. 2025).
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from ftcluster_common.recipe import Training
from ftcluster_train.comm.quantized import all_reduce_quantized, wire_bytes
from ftcluster_train.comm.workers import make_worker
from ftcluster_train.engine.optim.flat_params import add_buffers
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep


class LocalOptimizerStep(FlatOptimizerStep):
    """AdamW on each worker, and an outer step over all workers.

    Only flags are summed over all ranks in each step, so that all see it when one is asked to stop
    or has a loss that is not finite.

    Args:
        model: in fp32; its parameters are in `dtype` afterwards.
    """

    def __init__(self, model: PreTrainedModel, training: Training, dtype: torch.dtype) -> None:
        self._worker = make_worker()
        super().__init__(model, training, dtype, len(self._worker.ranks), self._worker.steps)
        self._steps, self._dtype = training.sync_steps, training.sync_dtype
        self._overlap = self._steps // 2  # steps that an exchange may take
        self._rate, self._beta = training.outer_learning_rate, training.outer_momentum
        weights = self.weights.master_weights
        self._common, self._momentum = weights.clone(), torch.zeros_like(weights)
        self._sent, self._mean = torch.empty_like(weights), torch.empty_like(weights)
        self._share = self._worker.share  # of a batch
        self._since = 0  # local steps since an exchange began
        self._exchange: Future[None] | None = None  # under way
        self._thread = ThreadPoolExecutor(1, "exchange")

    def start_batch(self, by_rank: Sequence[int]) -> None:
        own = sum(by_rank[rank] for rank in self._worker.ranks)
        self._share = own / sum(by_rank)

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        super().backward(loss / self._share, last)  # a mean over this worker's samples

    def step(self) -> float:
        norm = super().step()
        self._since += 1
        if self._exchange and self._since == self._overlap:
            self._finish_exchange()
        if self._since == self._steps:
            self._start_exchange()
        return norm

    def _norm(self) -> torch.Tensor:
        norm = super()._norm()
        flags = torch.cat([norm.isfinite().logical_not().float().view(1), self.control_flags])
        self.traffic.add(flags.nbytes, dist.get_world_size(), passes=2)
        with self.traffic:
            dist.all_reduce(flags)
        self.control_flags.copy_(flags[1:])
        return norm if flags[0] == 0 else torch.tensor(torch.nan)

    def synchronize(self) -> None:
        if self._exchange:
            self._finish_exchange()
        elif self._since == 0:
            return
        self._start_exchange()
        self._finish_exchange()
        self.weights.master_weights.copy_(self._common)
        self.weights.copy_to_model()

    def _start_exchange(self) -> None:
        self._since = 0
        torch.sub(self._common, self.weights.master_weights, out=self._sent)
        self._sent.mul_(self._worker.share)
        if leaders := self._worker.leaders:
            size = wire_bytes(len(self._sent), self._dtype)
            for _ in range(2):
                self.traffic.add(size, dist.get_world_size(leaders))
        self._exchange = self._thread.submit(self._exchange_sent)

    def _exchange_sent(self) -> None:
        """Sum over the workers; what int8 does not express of `_sent` stays in the weights."""
        worker = self._worker
        if worker.leaders:
            all_reduce_quantized(self._sent, self._mean, self._dtype, worker.leaders)
        if worker.exchange:
            for tensor in (self._sent, self._mean):
                dist.broadcast(tensor, worker.ranks[0], group=worker.exchange)

    def _finish_exchange(self) -> None:
        assert self._exchange
        with self.traffic:
            self._exchange.result()
        self._exchange = None
        outer = self._mean
        self._momentum.mul_(self._beta).add_(outer)
        outer.add_(self._momentum, alpha=self._beta)
        self._common.sub_(outer, alpha=self._rate)
        weights = self.weights.master_weights
        weights.add_(self._sent, alpha=1 / self._worker.share).sub_(outer, alpha=self._rate)
        self.weights.copy_to_model()

    def digest(self) -> str:
        """SHA-256 of the common weights."""
        digest = hashlib.sha256(self._common.numpy())
        add_buffers(digest, self.weights.saved_buffers)
        return digest.hexdigest()

    def gradients_digest(self) -> str:
        """Nothing: each worker has other gradients."""
        return ""

    def _tensors(self) -> dict[str, torch.Tensor]:
        common = {"common_weights": self._common, "outer_momentum": self._momentum}
        return super()._tensors() | common

    def state_loaded(self, step: int) -> None:
        super().state_loaded(step)
        self._since = 0
