"""Predictions for a set: each rank computes a part of them, and every rank gets all of them."""

from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ftcluster_train.comm.world import World, gather_over_ranks
from ftcluster_train.engine.data.sampler import eval_batches
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.patching.batch_context import BatchContext, context_of
from ftcluster_train.patching.patch_model import skip_padding


@torch.inference_mode()  # type: ignore[untyped-decorator]
def predict(
    task: Task, model: PreTrainedModel, samples: Samples, world: World, bf16: bool,
    context: BatchContext | None = None,
) -> list[Any]:  # fmt: skip
    """Return the task's prediction for each sample; every rank returns the same list.

    Args:
        context: batch context of a model in training; None for any other model.
    """
    model.eval()
    skip_padding(model, task)
    most = task.recipe.training.per_device_eval_batch_size
    of_rank: list[tuple[int, Any]] = []
    lengths, tokens = task.lengths(samples), task.evaluation_tokens(model)
    for indices in eval_batches(lengths, world.rank, world.size, most, tokens):
        batch = [task.draw(samples[i], i, None) for i in indices]
        with replace(context or context_of(model), predicts=True):
            of_rank += zip(indices, task.predict(model, batch, bf16), strict=True)
    by_index = dict(pair for pairs in gather_over_ranks(of_rank) for pair in pairs)
    return [by_index[i] for i in range(len(samples))]
