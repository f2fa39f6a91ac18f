"""Chooses the kernels that a model is trained with."""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from ftcluster_train.kernels import Optimizations, avx512
from ftcluster_train.kernels.activations import fuse_activations
from ftcluster_train.kernels.attention import Attention, torch_attention
from ftcluster_train.kernels.dropout import dropout
from ftcluster_train.kernels.function_overrides import FunctionOverrides
from ftcluster_train.kernels.rms_norm import fuse_rms_norms
from ftcluster_train.tasks.base import Task
from ftcluster_train.training.progress import ProgressLog


def patch_model(
    model: PreTrainedModel,
    task: Task,
    attention_dropout: bool,
    optimizations: Optimizations,
    log: ProgressLog,
) -> FunctionOverrides:
    """The context for forward and backward passes; logs what does not work with this model.

    Args:
        model: its activations are replaced in place.
        attention_dropout: False leaves out the attention dropout of the model's configuration.
    """

    @cache
    def notice(text: str) -> None:
        log.write("notice", message=text)

    kind = f"this {model.config.model_type} model"
    overrides: dict[Any, Callable[..., Any]] = {}
    if optimizations.dropout:
        overrides[functional.dropout] = dropout
        if avx512.is_supported() and not avx512.LIBRARY.exists() and _drops(model):
            notice(
                "dropout takes longer than it could: ftcluster was built without a C compiler; "
                "install gcc where it is built, and run `ftcluster setup` again"
            )
    attention = Attention(attention_dropout, say=notice)
    if not optimizations.attention:
        attention = Attention(attention_dropout, max_length=0)
    overrides[torch_attention] = attention
    if model.config._attn_implementation != "sdpa":  # transformers has no public name for it
        notice(f"{kind} does not call torch's attention, so ours is not used")
    if optimizations.activations:
        fuse_activations(model)
        fuse_rms_norms(model)
    head = None
    if optimizations.cross_entropy:
        head = task.use_fused_loss(model)
        if head is None and task.large_vocabulary:
            notice(
                f"the logits of {kind} are more than a matrix product, so the loss is computed "
                "from them and takes more memory"
            )
    return FunctionOverrides(overrides, head)


def _drops(model: PreTrainedModel) -> bool:
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
