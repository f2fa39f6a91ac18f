"""Predictions for a set: each rank computes a part of them, and every rank gets all of them."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ftcluster_train.comm.world import World, gather_over_ranks
from ftcluster_train.engine.data.sampler import eval_batches
from ftcluster_train.engine.data.token_samples import LENGTHS, Samples
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.patching.batch_context import BatchContext, context_of
from ftcluster_train.patching.patch_model import skip_padding

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def predict(
    task: Task, model: "PreTrainedModel", samples: Samples, world: World, bf16: bool,
    context: BatchContext | None = None,
) -> list[Any]:  # fmt: skip
    """Return the task's prediction for each sample; every rank returns the same list.

    Args:
        context: batch context of a model in training; None for any other model.
    """
    indices = range(len(samples))
    of_rank = list(predictions_of_rank(task, model, samples, world, bf16, context, indices))
    by_index = dict(pair for pairs in gather_over_ranks(of_rank) for pair in pairs)
    return [by_index[i] for i in indices]


def predictions_of_rank(
    task: Task, model: "PreTrainedModel", samples: Samples, world: World, bf16: bool,
    context: BatchContext | None, indices: Sequence[int],
) -> Iterator[tuple[int, Any]]:  # fmt: skip
    """Yield the index and the prediction of each sample in this rank's share of some samples.

    Args:
        context: batch context, see `predict`.
        indices: indices of the samples that the ranks divide among them.
    """
    model.eval()
    skip_padding(model, task)
    most = task.recipe.training.per_device_eval_batch_size
    all_lengths = task.lengths(samples)
    lengths = array(LENGTHS, map(all_lengths.__getitem__, indices))
    del all_lengths
    tokens = task.evaluation_tokens(model)
    for positions in eval_batches(lengths, world.rank, world.size, most, tokens):
        numbers = [indices[position] for position in positions]
        batch = [task.draw(samples[i], i, None) for i in numbers]
        with torch.inference_mode(), replace(context or context_of(model), predicts=True):
            predictions = task.predict(model, batch, bf16)
        yield from zip(numbers, predictions, strict=True)
