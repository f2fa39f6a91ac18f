"""The batches of a training: which samples a step takes, and those of this rank."""

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftcluster_common.job import Job
from ftcluster_common.launch import RESTART_VARIABLE
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.sampler import BatchSampler, micro_batches, share_of_rank
from ftcluster_train.engine.data.token_store import Sample, Samples
from ftcluster_train.engine.tasks.base import Task


@dataclass(frozen=True)
class StepBatch:
    """The samples of a step.

    Attributes:
        step: its number, from 1.
        samples: how many all ranks take.
        tokens: of all ranks, without padding.
        by_rank: what the samples of each rank count in the loss, which is a mean over all.
        share: the numbers of this rank's samples.
        parts: this rank's samples, by micro-batch.
        dropout_seed: of this rank.
    """

    step: int
    samples: int
    tokens: int
    by_rank: Sequence[int]
    share: Sequence[int]
    parts: Sequence[Sequence[Sample]]
    dropout_seed: int


class Batches:
    """Every rank computes the same batches, and reads its share.

    Attributes:
        steps: optimizer steps of the whole training.
        steps_per_epoch: of one pass over the samples.
    """

    def __init__(
        self, job: Job, task: Task, train_set: Samples, world: World, group_by_length: bool = True
    ) -> None:
        self._job, self._train_set, self._world = job, train_set, world
        self._settings = job.recipe.training
        self._lengths = train_set.lengths("input_ids")
        self._weights = task.weights(train_set)
        self._sampler = BatchSampler(
            self._lengths, job.recipe.batch_size, self._settings,
            group_by_length and task.group_by_length,
        )  # fmt: skip
        self.steps, self.steps_per_epoch = self._sampler.steps, self._sampler.steps_per_epoch

    def after(self, step: int) -> Iterator[tuple[int, list[int]]]:
        """The numbers of the following steps, and of all ranks' samples in them."""
        return enumerate(itertools.islice(self._sampler, step, None), start=step + 1)

    def read(self, step: int, indices: Sequence[int]) -> StepBatch:
        """This rank's samples of a step."""
        share = share_of_rank(indices, self._world.rank, self._world.size)
        parts = micro_batches(share, self._settings.gradient_accumulation_steps)
        if self._job.log_samples:
            log_samples(self._job.run_dir, self._world.rank, step, share)
        size, weights = self._world.size, self._weights
        shares = (share_of_rank(indices, rank, size) for rank in range(size))
        return StepBatch(
            step=step,
            samples=len(indices),
            tokens=sum(self._lengths[i] for i in indices),
            by_rank=[sum(weights[i] for i in one) if weights else len(one) for one in shares],
            share=share,
            parts=[[self._train_set[i] for i in part] for part in parts],
            dropout_seed=dropout_seed(self._settings.seed, step, self._world.rank),
        )


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Each rank and step has another dropout mask, the same one in each run."""
    return ((seed * 1_000_003 + step) * 65_537 + rank) % (1 << 64)


def log_samples(run_dir: Path, rank: int, step: int, samples: Sequence[int]) -> None:
    """Append one line to samples/rank-N.jsonl: restart, rank, step, and the samples' numbers.

    Call it before the step's all-reduce: once a step has changed the weights, each rank has logged
    it. A step that a failure cut short is logged again when it is repeated; the last one counts.
    """
    path = run_dir / "samples" / f"rank-{rank}.jsonl"
    path.parent.mkdir(exist_ok=True)
    restart = int(os.environ.get(RESTART_VARIABLE, "0"))
    line = {"restart": restart, "rank": rank, "step": step, "samples": list(samples)}
    with path.open("ab", buffering=0) as file:  # a whole line, or nothing
        file.write(json.dumps(line).encode() + b"\n")
