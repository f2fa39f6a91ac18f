"""Intel Extension for PyTorch (IPEX), used if the stack contains it and the plan requests it.

This module changes the model and the optimizer like the option `--use_ipex` of transformers'
Trainer, which exists in transformers 4.55 but no longer in 4.57. It was tested with IPEX 2.8.0,
also on CPUs from vendors other than Intel.
"""

import hashlib
import importlib
import math
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from ftcluster_common.recipe import Training
from ftcluster_train.comm.all_reduce import all_reduce_bf16
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.optim.base import OptimizerStep
from ftcluster_train.engine.optim.flat_params import PendingGathers
from ftcluster_train.engine.optim.gradient_buckets import CONTROL_FLAGS
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.batch_context import context_of

HINT = (
    "train without IPEX: training.use_ipex=false; or set up a stack that has IPEX (for a list: "
    "ftcluster stacks)"
)


def load_ipex() -> Any:
    """Return the module intel_extension_for_pytorch.

    Raises:
        TrainError: the module is not installed, or does not support this torch or CPU.
    """
    try:
        return importlib.import_module("intel_extension_for_pytorch")
    # IPEX raises SystemExit on a CPU without AVX2, and AttributeError with an unsupported torch
    except (Exception, SystemExit) as error:
        raise TrainError(
            f"IPEX (intel_extension_for_pytorch) cannot be imported with torch "
            f"{torch.__version__}: {error}",
            HINT,
        ) from error


class IpexOptimizerStep(OptimizerStep):
    """`ipex.optimize` at level O1 and torch's AdamW.

    With bf16, the layers use bf16 copies of their weights, which IPEX packs for oneDNN. The
    optimizer updates the fp32 weights. The AdamW step is torch's, because IPEX 2.8.0 has no fused
    AdamW for CPUs (see its optim/_optimizer_utils.py).

    Args:
        model: model in fp32; IPEX changes it in place and sets training mode.

    Raises:
        TrainError: IPEX cannot be imported, cannot optimize this model, or has no bf16 kernels for
            this CPU.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        adamw: torch.optim.Optimizer,
        training: Training,
        bf16: bool,
        world_size: int,
    ) -> None:
        ipex = load_ipex()
        model.train()  # IPEX rejects an optimizer unless the model is in training mode
        dtype = torch.bfloat16 if bf16 else torch.float32
        try:
            self._model, self.adamw = ipex.optimize(
                model, optimizer=adamw, dtype=dtype, level="O1", inplace=True
            )
        except AssertionError as error:  # IPEX raises AssertionError for unsupported models
            raise TrainError(f"IPEX cannot optimize this model here: {error}", HINT) from error
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._max_norm, self._world_size = training.max_grad_norm, world_size
        self._all_reduce = all_reduce_bf16 if training.gradient_dtype == "bf16" else dist.all_reduce
        self._sent_bytes = 2 if training.gradient_dtype == "bf16" else 4
        self._norm = 0.0
        self.control_flags, self.traffic = (
            torch.zeros(CONTROL_FLAGS, dtype=torch.float32),
            Traffic(),
        )
        self.pending_gathers = PendingGathers()
        self.context = context_of(self._model)

    def backward(self, loss: torch.Tensor, last: bool) -> None:  # noqa: ARG002 - reduced in `step`
        loss.backward()

    def step(self) -> float:
        for parameter in self._parameters:
            if parameter.grad is None:  # no sample on this rank, or no effect on the loss
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if self._world_size > 1:
            shared = [*gradients, self.control_flags]
            flat = torch.cat([tensor.flatten() for tensor in shared])
            self.traffic.add(self._sent_bytes * len(flat), self._world_size, passes=2)
            with self.traffic:
                self._all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in shared])
            for gradient, part in zip(shared, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._max_norm or math.inf)
        if norm.isfinite():
            self.adamw.step()
        self.adamw.zero_grad()
        self._norm = float(norm)
        return self._norm

    def digest(self) -> str:
        """Return the SHA-256 of the fp32 weights, without the packed copies in IPEX's layers."""
        digest = hashlib.sha256()
        saved = self._model.state_dict()
        for name, _ in self._model.named_parameters():
            if name in saved:  # skip parameters that only IPEX's layers have
                digest.update(saved[name].contiguous().view(torch.uint8).numpy())
        return digest.hexdigest()

    def gradients_digest(self) -> str:
        """Return the gradient norm of the last step, because the gradients are not kept."""
        return self._norm.hex()

    def state(self) -> None:
        """Return None: runs with IPEX cannot resume, because IPEX packs copies of weights."""

    def detach(self, wanted: bool = True) -> PreTrainedModel:  # noqa: ARG002 - each rank copies
        """Return a new model with the same weights.

        The new model gets the fp32 weights from IPEX's `state_dict`. The IPEX model itself cannot
        be saved: its layers have packed weights, and `save_pretrained` would record bf16 as the
        dtype.
        """
        plain = type(self._model)(self._model.config)
        plain.load_state_dict(self._model.state_dict())
        return plain
