"""Each task resumes after a kill within a batch, and on another number of ranks."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.protocol.job import Job
from ftcluster_train.engine import rank as rank_module
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.step import TrainingStep
from tests.engine.forks import start
from tests.engine.jobs import read_events, run_rank
from tests.engine.test_run_on_ranks import KINDS, STEPS, job_of
from tests.programs import free_ports

FEW = ("without packing", "adapters of a classifier")
SAVED = 4  # step of the checkpoint
NAMES = [name if name in FEW else pytest.param(name, marks=pytest.mark.more) for name in KINDS]
Events = list[dict[str, Any]]


class Killed(Exception):
    """Simulates a killed rank."""


def kill_in_second_part(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    backward, calls = TrainingStep._backward, dict.fromkeys(range(STEPS + 1), 0)

    def killed(self: TrainingStep, loss: Any, batch: Any, last: bool) -> float:
        calls[batch.step] += 1
        if batch.step == at and calls[at] == 2:
            raise Killed
        return backward(self, loss, batch, last)

    monkeypatch.setattr(TrainingStep, "_backward", killed)


def fields(events: Events, event: str, field: str) -> list[Any]:
    return [one[field] for one in events if one["event"] == event]


def saving(folder: Path, name: str, run: str) -> Job:
    return job_of(
        folder, KINDS[name], run, save_strategy="steps", save_steps=SAVED,
        gradient_accumulation_steps=3,
    )  # fmt: skip


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("name", NAMES)
def test_a_death_between_the_parts_of_a_batch(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_rank(saving(tmp_path / "whole", name, "runs/one"))
    job = saving(tmp_path / "killed", name, "runs/one")
    with monkeypatch.context() as patch:
        kill_in_second_part(patch, SAVED + 2)
        with pytest.raises(Killed):
            run_rank(job)
    resumed = run_rank(job)
    assert fields(resumed, "step", "step") == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert fields(resumed, "step", "loss")[5:] == fields(whole, "step", "loss")[4:]
    digests = [fields(events, "parameters", "sha256")[-1] for events in (resumed, whole)]
    assert digests[0] == digests[1]


def _rank(rank: int, jobs: Sequence[Job], ports: Sequence[int], size: int) -> None:
    torch.set_num_threads(1)
    for job, port in zip(jobs, ports, strict=True):
        os.environ |= {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "MASTER_PORT": str(port)}
        rank_module.run(job)


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("name", NAMES)
def test_another_number_of_ranks(tmp_path: Path, name: str) -> None:
    """Two ranks continue from a checkpoint of one rank, with other parts of its batches."""
    first = saving(tmp_path, name, "runs/first")
    whole = run_rank(first)
    shutil.rmtree(first.run_dir / f"checkpoints/checkpoint-{STEPS}")
    later = replace(saving(tmp_path, name, "runs/later"), prefix=tmp_path, resume=("first",))
    write_inputs(later.run_dir, prepare(later))
    start(_rank, 2, [later], free_ports(1), 2)
    resumed = read_events(later)
    assert fields(resumed, "step", "step") == [5, 6, 7, 8]
    wanted = fields(whole, "step", "loss")[SAVED:]
    assert fields(resumed, "step", "loss") == pytest.approx(wanted, rel=1e-4)
    [one], [two] = fields(whole, "result", "metrics"), fields(resumed, "result", "metrics")
    assert two == pytest.approx(one, rel=1e-3)
