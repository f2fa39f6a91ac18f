"""Resuming a training: to the last bit, from what is whole."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ftcluster_common.job import Job
from ftcluster_train.distributed.world import World
from ftcluster_train.errors import TrainError
from ftcluster_train.training import loop, resume
from tests.engine.jobs import Run, make_job, make_samples
from tests.engine.jobs import run as run_once
from tests.engine.models import make_model

SAMPLES = make_samples("text-classification", 60)
STEPS: dict[str, Any] = {
    "batch_size": 12, "lr_scheduler_type": "cosine", "warmup_steps": 2, "weight_decay": 0.1,
    "save_strategy": "steps", "save_steps": 4,
}  # fmt: skip


def job_of(folder: Path, precision: str = "bf16", **changes: Any) -> Job:
    job = make_job(folder / "runs/here", "text-classification", precision, **{**STEPS, **changes})
    return replace(job, prefix=folder)


def run(job: Job, model: PreTrainedModel, world: World) -> Run:
    """Train, also where a training of this job was before."""
    shutil.rmtree(job.run_dir / "samples", ignore_errors=True)
    return run_once(job, model, SAMPLES, world)


class Killed(Exception):
    """Stands for a killed rank."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    def report(at: int, doing: str) -> None:
        if (at, doing) == (step, "forward"):
            raise Killed

    monkeypatch.setattr(loop, "report", report)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_training_is_the_same_to_the_last_bit(
    tmp_path: Path, world: World, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(job_of(tmp_path / "a", precision, max_steps=10), make_model("bert"), world)
    job = job_of(tmp_path / "b", precision, max_steps=10)
    with monkeypatch.context() as patch:
        killed_at(patch, 7)
        with pytest.raises(Killed):
            run(job, make_model("bert"), world)
    # another model: everything comes from the checkpoint
    other = make_model("bert")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    resumed = run(job, other, world)
    assert resumed.digests[-1] == whole.digests[-1]
    assert resumed.losses[-6:] == whole.losses[-6:]
    (notice,) = resumed.of("notice")
    assert notice["message"] == "resumed after step 4"
    steps = [event["step"] for event in resumed.of("step")]
    assert steps == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 10]


def test_another_run_continues_from_the_checkpoints_of_the_first(
    tmp_path: Path, world: World
) -> None:
    first = job_of(tmp_path, max_steps=4)
    run(first, make_model("bert"), world)
    second = replace(
        make_job(tmp_path / "runs/later", "text-classification", "bf16", **STEPS, max_steps=6),
        prefix=tmp_path, resume="here",
    )  # fmt: skip
    assert [e["step"] for e in run(second, make_model("bert"), world).of("step")] == [5, 6]


@pytest.mark.parametrize("file", ["state.safetensors", "model.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, world: World, file: str) -> None:
    job = job_of(tmp_path, max_steps=8)
    run(job, make_model("bert"), world)
    newest = job.run_dir / "checkpoints/checkpoint-8" / file
    newest.write_bytes(newest.read_bytes()[:-10])
    resumed = run(job, make_model("bert"), world)
    messages = [event["message"] for event in resumed.of("notice")]
    assert any("checkpoint-8" in text and "damaged" in text for text in messages)
    assert messages[-1] == "resumed after step 4"


def test_the_state_of_another_model_is_refused(tmp_path: Path, world: World) -> None:
    job = job_of(tmp_path, max_steps=4)
    run(job, make_model("bert"), world)
    with pytest.raises(TrainError) as caught:
        run(job, make_model("distilbert"), world)
    assert "another model" in caught.value.message


def test_snapshots_are_written_beside_the_training_and_go_at_its_end(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(job_of(tmp_path, max_steps=6, save_strategy="no"), snapshot_seconds=1e-6)
    folder = job.run_dir / "snapshots"
    with monkeypatch.context() as patch:
        killed_at(patch, 4)
        # each is written before the next step, so that the test knows which there is
        started = resume.threading.Thread.start

        def start(thread: Any) -> None:
            started(thread)
            thread.join()

        patch.setattr(resume.threading.Thread, "start", start)
        with pytest.raises(Killed):
            run(job, make_model("bert"), world)
    assert [path.name for path in folder.iterdir()] == ["snapshot-3"]
    assert json.loads((folder / "snapshot-3/state.json").read_text())["step"] == 3
    resumed = run(job, make_model("bert"), world)
    assert resumed.of("notice")[-1]["message"] == "resumed after step 3"
    assert not folder.exists()
    whole = run(job_of(tmp_path / "whole", max_steps=6), make_model("bert"), world)
    assert resumed.digests[-1] == whole.digests[-1]


def test_a_full_disk_costs_the_snapshot_only(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resume, "save_file", full)
    job = replace(job_of(tmp_path, max_steps=3, save_strategy="no"), snapshot_seconds=1e-6)
    assert run(job, make_model("bert"), world).of("step")[-1]["step"] == 3
