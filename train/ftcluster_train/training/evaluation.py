"""A model's metrics on the validation sets, each sample evaluated by one rank."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from ftcluster_train.data.sampler import eval_batches
from ftcluster_train.data.token_store import Samples
from ftcluster_train.distributed.world import World, gather_over_ranks
from ftcluster_train.kernels.function_overrides import Kernels
from ftcluster_train.tasks.base import Task
from ftcluster_train.training.models import outputs_of


def evaluate_all(
    task: Task,
    model: PreTrainedModel,
    validation_sets: Mapping[str, Samples],
    world: World,
    bf16: bool,
) -> dict[str, float]:
    """The task's metrics over each set; where there are several, with the set's name behind.

    `validation_matched` gives `accuracy_matched`.
    """
    metrics = {}
    for name, samples in validation_sets.items():
        ending = f"_{name.removeprefix('validation_')}" if len(validation_sets) > 1 else ""
        found = evaluate(task, model, samples, world, bf16)
        metrics.update({f"{metric}{ending}": value for metric, value in found.items()})
    return metrics


@torch.inference_mode()  # type: ignore[untyped-decorator]
def evaluate(
    task: Task, model: PreTrainedModel, samples: Samples, world: World, bf16: bool
) -> dict[str, float]:
    """The task's metrics over all samples, each evaluated by one rank; the same on every rank."""
    model.eval()
    own: list[tuple[int, Any]] = []
    for indices in eval_batches(samples.lengths("input_ids"), world.rank, world.size):
        batch = [samples[i] for i in indices]
        with Kernels(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = outputs_of(model, task.collate(batch).inputs)
        own += zip(indices, task.predictions(outputs, batch), strict=True)
    of_all = dict(pair for pairs in gather_over_ranks(own) for pair in pairs)
    return task.score([of_all[i] for i in range(len(samples))], samples)
