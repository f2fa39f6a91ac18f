"""Intel Extension for PyTorch (IPEX), where the stack has it and the plan asks for it.

Used as transformers' Trainer did under `--use_ipex` (4.55 still has it, 4.57 no longer): on model
and optimizer. Run with IPEX 2.8.0, also on a CPU of another maker.
"""

import hashlib
import importlib
import math
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from ftcluster_train.errors import TrainError

HINT = "train without it: training.use_ipex=false; the stacks that have it: ftcluster stacks"


def load_ipex() -> Any:
    """The module intel_extension_for_pytorch.

    Raises:
        TrainError: it is not there, or does not start with this torch or on this CPU.
    """
    try:
        return importlib.import_module("intel_extension_for_pytorch")
    # it exits on a CPU without AVX2, and stumbles while exiting on another version of torch
    except (Exception, SystemExit) as error:
        raise TrainError(
            f"IPEX (intel_extension_for_pytorch) cannot be imported with torch "
            f"{torch.__version__}: {error}",
            HINT,
        ) from error


class IpexUpdate:
    """`ipex.optimize` at level O1, and then its way of learning; see `optimizer_step.Update`.

    With bf16 the layers get bf16 copies of their weights, packed for oneDNN, and the optimizer goes
    on with the fp32 ones. AdamW is not among the optimizers that IPEX fuses on CPUs (2.8.0,
    optim/_optimizer_utils.py), so its step remains torch's own.

    Args:
        model: in fp32; it is changed in place, and in training mode afterwards.
        optimizer: of its parameters.
        max_norm: that gradients are clipped to; 0 leaves them.
        bf16: whether the layers compute in bf16.
        size: number of ranks.

    Raises:
        TrainError: IPEX cannot be imported, or has no bf16 kernels for this CPU.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        max_norm: float,
        bf16: bool,
        size: int,
    ) -> None:
        ipex = load_ipex()
        model.train()  # IPEX takes an optimizer for a model in training only
        dtype = torch.bfloat16 if bf16 else torch.float32
        try:
            self._model, self.optimizer = ipex.optimize(
                model, optimizer=optimizer, dtype=dtype, level="O1", inplace=True
            )
        except AssertionError as error:  # how IPEX says what it cannot do
            raise TrainError(f"IPEX cannot optimize this model here: {error}", HINT) from error
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._max_norm, self._size = max_norm, size
        self._norm = 0.0

    def backward(self, loss: torch.Tensor, last: bool) -> None:  # noqa: ARG002 - see Update
        """See Update; the ranks share when the step is due."""
        loss.backward()

    def step(self) -> float:
        """See Update."""
        for parameter in self._parameters:
            if parameter.grad is None:  # this rank had no sample, or no loss depends on it
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if self._size > 1:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)
            parts = flat.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_norm or math.inf)
        if norm.isfinite():
            self.optimizer.step()
        self.optimizer.zero_grad()
        self._norm = float(norm)
        return self._norm

    def digest(self) -> str:
        """SHA-256 over all parameters as they are saved, in their order.

        Those are the fp32 weights, not the packed copies that IPEX's layers compute with.
        """
        digest = hashlib.sha256()
        saved = self._model.state_dict()
        for name, _ in self._model.named_parameters():
            if name in saved:  # IPEX's layers have some of their own
                digest.update(saved[name].contiguous().view(torch.uint8).numpy())
        return digest.hexdigest()

    def gradients_digest(self) -> str:
        """See Update; their norm, as they are gone after the step."""
        return self._norm.hex()

    def release(self) -> PreTrainedModel:
        """See Update; another model with the same weights.

        IPEX's `state_dict` gives fp32 weights in their usual layout; its layers themselves do not,
        and `save_pretrained` would write down their bf16 as the model's type.
        """
        plain = type(self._model)(self._model.config)
        plain.load_state_dict(self._model.state_dict())
        return plain

    def hold(self) -> None:
        """See Update; the model was never given away."""
