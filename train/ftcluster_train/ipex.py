"""Intel Extension for PyTorch (IPEX), where the stack has it and the plan asks for it.

Used as transformers' Trainer did under `--use_ipex` (4.55 still has it, 4.57 no longer): on model
and optimizer, before DDP. Run with IPEX 2.8.0, also on a CPU of another maker.
"""

import importlib
from typing import Any

import torch
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


def optimize(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, bf16: bool
) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    """`ipex.optimize` at level O1, in place; the model is in training mode afterwards.

    With bf16 the layers get bf16 copies of their weights, packed for oneDNN, and the optimizer goes
    on with the fp32 ones. AdamW is not among the optimizers that IPEX fuses on CPUs (2.8.0,
    optim/_optimizer_utils.py), so its step remains torch's own.

    Raises:
        TrainError: IPEX cannot be imported, or has no bf16 kernels for this CPU.
    """
    ipex = load_ipex()
    model.train()  # IPEX takes an optimizer for a model in training only
    dtype = torch.bfloat16 if bf16 else torch.float32
    try:
        model, optimizer = ipex.optimize(
            model, optimizer=optimizer, dtype=dtype, level="O1", inplace=True
        )
    except AssertionError as error:  # how IPEX says what it cannot do
        raise TrainError(f"IPEX cannot optimize this model here: {error}", HINT) from error
    return model, optimizer


def without_ipex(model: PreTrainedModel) -> PreTrainedModel:
    """The same model as transformers alone would have it, with its weights in fp32.

    IPEX's `state_dict` gives fp32 weights in their usual layout; its layers themselves do not, and
    `save_pretrained` would write down their bf16 as the model's type.
    """
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    return plain
