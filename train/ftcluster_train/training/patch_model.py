"""Chooses the kernels that a model is trained with."""

from collections.abc import Callable
from typing import Any

from torch.nn import functional
from transformers import PreTrainedModel

from ftcluster_train.kernels import Gains
from ftcluster_train.kernels.activations import fuse_activations
from ftcluster_train.kernels.attention import LONGEST, Attention, flash
from ftcluster_train.kernels.dropout import dropout
from ftcluster_train.kernels.function_overrides import Kernels
from ftcluster_train.tasks.base import Task
from ftcluster_train.training.progress import Tell


def fuse(
    model: PreTrainedModel, task: Task, attention_dropout: bool, gains: Gains, tell: Tell
) -> Kernels:
    """What a step's forward and backward pass run under; tells which gains a model cannot have.

    Args:
        model: its activations are changed in place.
        task: knows whether its loss needs the logits.
        attention_dropout: whether attention drops out as the model's configuration asks for.
        gains: those that are wanted.
        tell: where it is told.
    """
    kind = f"this {model.config.model_type} model"
    instead: dict[Any, Callable[..., Any]] = {}
    if gains.dropout:
        instead[functional.dropout] = dropout
    instead[flash] = Attention(attention_dropout, LONGEST if gains.attention else 0)
    if model.config._attn_implementation != "sdpa":
        tell.notice(f"{kind} computes attention by itself: it is as transformers has it")
    if gains.activations:
        fuse_activations(model)
    head = task.fuse_loss(model) if gains.vocabulary else None
    if head is None and gains.vocabulary and task.large_vocabulary:
        tell.notice(f"{kind} makes more of its logits than a product: the loss is computed of them")
    return Kernels(instead, head)
