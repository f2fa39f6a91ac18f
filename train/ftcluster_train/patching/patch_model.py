"""Chooses the entries that a model is trained with."""

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ftcluster_common.kernel_limits import ATTENTION_TOKENS
from ftcluster_train.kernels import simd
from ftcluster_train.patching.attention import Attention
from ftcluster_train.patching.functions import DROPOUT, GELU, SILU
from ftcluster_train.patching.fused_modules import (
    FUSED_GATED_MLPS,
    FUSED_RMS_NORMS,
    FUSED_TANH_GELUS,
)
from ftcluster_train.patching.kernel_mode import KernelMode
from ftcluster_train.patching.rotary_positions import ROTARY_POSITIONS
from ftcluster_train.patching.skipped_rows import SKIPPED_ROWS, why_not_skipped

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# has transformers pass keys that heads share once, also beside a mask (5.23)
SHARED_KEYS = "TRANSFORMERS_SDPA_FORCE_GQA"


@dataclass(frozen=True)
class Optimizations:
    """Which optimizations a training uses; each can be left out to measure it (bench/engine).

    Attributes:
        dropout: masks from a generator that all threads compute together, see `kernels.dropout`.
        attention: matrix products for short sequences, see `kernels.attention`.
        activations: one loop for each, see `kernels.activations`; also RMSNorm and rotary
            positions, see `kernels.norm` and `kernels.rotary`.
        cross_entropy: no logits in fp32, see `kernels.linear_cross_entropy`.
        bf16_weights: a bf16 copy of fp32 master weights, see
            `ftcluster_train.engine.optim.flat_params`.
        group_by_length: batches of similar length, see `ftcluster_train.engine.data.sampler`.
    """

    dropout: bool = True
    attention: bool = True
    activations: bool = True
    cross_entropy: bool = True
    bf16_weights: bool = True
    group_by_length: bool = True


class FusedLossTask(Protocol):
    """A task, as far as its loss may be computed from hidden states."""

    large_vocabulary: bool

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        """The weight of the layer that has to return its input; None: the task needs logits."""


class Log(Protocol):
    """Where notices are written."""

    def write(self, event: str, **fields: Any) -> None:
        """Write an event."""


def patch_model(
    model: "PreTrainedModel",
    task: FusedLossTask,
    attention_dropout: bool,
    optimizations: Optimizations,
    log: Log,
) -> KernelMode:
    """The context for forward and backward passes; logs what does not work with this model.

    Args:
        model: its activations are replaced in place, and it leaves out what nothing reads.
        attention_dropout: False leaves out the attention dropout of the model's configuration.
    """

    @cache
    def notice(text: str) -> None:
        log.write("notice", message=text)

    SKIPPED_ROWS.apply(model)
    if why := why_not_skipped(model):
        notice(why)
    kind = f"this {model.config.model_type} model"
    library = simd.library_path()
    if library is not None and not library.exists():
        notice(
            "training takes longer than it could: ftcluster was built without a C compiler; "
            "install gcc where it is built, and run `ftcluster setup` again"
        )
    longest = ATTENTION_TOKENS if optimizations.attention else 0
    patches = [Attention(attention_dropout, longest).patch()]
    os.environ.setdefault(SHARED_KEYS, "1")
    if optimizations.dropout:
        patches.append(DROPOUT)
    if optimizations.activations:
        patches += [GELU, SILU]
        for fusion in (FUSED_TANH_GELUS, FUSED_GATED_MLPS, FUSED_RMS_NORMS, ROTARY_POSITIONS):
            fusion.apply(model)
    head = None
    if optimizations.cross_entropy:
        head = task.use_fused_loss(model)
        if head is None and task.large_vocabulary:
            notice(
                f"the logits of {kind} are more than a matrix product, so the loss is computed "
                "from them and takes more memory"
            )
    return KernelMode(patches, head, say=notice)
