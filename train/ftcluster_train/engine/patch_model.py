"""Chooses the kernels that a model is trained with."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from torch.nn import functional
from transformers import PreTrainedModel

from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.kernels import Optimizations, simd
from ftcluster_train.kernels.activations import gelu, silu
from ftcluster_train.kernels.attention import Attention, torch_attention
from ftcluster_train.kernels.dropout import dropout
from ftcluster_train.kernels.function_overrides import FunctionOverrides
from ftcluster_train.kernels.fuse_activations import fuse_activations
from ftcluster_train.kernels.rms_norm import fuse_rms_norms
from ftcluster_train.kernels.rotary import fuse_rotary
from ftcluster_train.kernels.unread_rows import leave_out_unread

# has transformers pass keys that heads share once, also beside a mask (5.23)
SHARED_KEYS = "TRANSFORMERS_SDPA_FORCE_GQA"


def patch_model(
    model: PreTrainedModel,
    task: Task,
    attention_dropout: bool,
    optimizations: Optimizations,
    log: ProgressLog,
) -> FunctionOverrides:
    """The context for forward and backward passes; logs what does not work with this model.

    Args:
        model: its activations are replaced in place, and it leaves out what nothing reads.
        attention_dropout: False leaves out the attention dropout of the model's configuration.
    """

    @cache
    def notice(text: str) -> None:
        log.write("notice", message=text)

    leave_out_unread(model)
    kind = f"this {model.config.model_type} model"
    overrides: dict[Any, Callable[..., Any]] = {}
    library = simd.library_path()
    if library is not None and not library.exists():
        notice(
            "training takes longer than it could: ftcluster was built without a C compiler; "
            "install gcc where it is built, and run `ftcluster setup` again"
        )
    if optimizations.dropout:
        overrides[functional.dropout] = dropout
    attention = Attention(attention_dropout, say=notice)
    if not optimizations.attention:
        attention = Attention(attention_dropout, max_length=0)
    overrides[torch_attention] = attention
    os.environ.setdefault(SHARED_KEYS, "1")
    if model.config._attn_implementation != "sdpa":  # transformers has no public name for it
        notice(f"{kind} does not call torch's attention, so ours is not used")
    if optimizations.activations:
        overrides[functional.gelu], overrides[functional.silu] = gelu, silu
        fuse_activations(model)
        fuse_rms_norms(model)
        if simd.is_available():
            fuse_rotary(model)
    head = None
    if optimizations.cross_entropy:
        head = task.use_fused_loss(model)
        if head is None and task.large_vocabulary:
            notice(
                f"the logits of {kind} are more than a matrix product, so the loss is computed "
                "from them and takes more memory"
            )
    return FunctionOverrides(overrides, head)
