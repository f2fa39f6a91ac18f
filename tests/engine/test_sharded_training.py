"""Trainings with a sharded optimizer: saved, resumed, and compared with unsharded trainings."""

import contextlib
import json
import os
import re
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Training
from ftcluster_train.comm.world import World, check_equal_on_ranks
from ftcluster_train.engine import checkpoints, loop, state_files
from ftcluster_train.engine.checkpoints import Checkpoints
from ftcluster_train.engine.optim import gradient_buckets
from ftcluster_train.engine.optim.flat_params import state_layout
from ftcluster_train.engine.optim.optimizer_step import make_optimizer_step
from ftcluster_train.engine.optim.sharded_step import ShardedOptimizerStep
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.snapshots import Snapshots
from ftcluster_train.engine.state_files import resume
from ftcluster_train.engine.train_state import TrainState
from ftcluster_train.errors import TrainError
from tests.engine.jobs import Run, make_job, make_samples, make_task_of
from tests.engine.jobs import run as run_once
from tests.engine.models import make_model
from tests.engine.ranks import on_ranks, weights_that_wait, whole_tensors

SAMPLES = make_samples("text-classification", 60)
VALIDATION = make_samples("text-classification", 20, seed=5)
STEPS: dict[str, Any] = {"batch_size": 12, "max_steps": 10, "weight_decay": 0.1}
SAVED: dict[str, Any] = {**STEPS, "save_strategy": "steps", "save_steps": 4}
BEST: dict[str, Any] = {
    **STEPS, "save_strategy": "best", "eval_strategy": "steps", "eval_steps": 2,
    "load_best_model_at_end": True, "metric_for_best_model": "loss",
}  # fmt: skip


def job_of(folder: Path, precision: str = "bf16", **changes: Any) -> Job:
    job = make_job(folder / "runs/here", "text-classification", precision, **changes)
    return replace(job, prefix=folder, shard_optimizer=True)


def run(job: Job, world: World, model: PreTrainedModel | None = None, **options: Any) -> Run:
    """Train, also in a folder in which this job has trained before."""
    shutil.rmtree(job.run_dir / "samples", ignore_errors=True)
    return run_once(job, model or make_model("bert"), SAMPLES, world, **options)


class Killed(Exception):
    """Simulates killed ranks."""


@contextlib.contextmanager
def killed_at(step: int) -> Any:
    usual = loop.report

    def report(at: int, doing: str) -> None:
        if (at, doing) == (step, "forward"):
            raise Killed

    loop.report = report
    with contextlib.suppress(Killed):
        yield
    loop.report = usual


@dataclass(frozen=True)
class Found:
    """The state of one of two hosts after some trainings."""

    whole: Run
    resumed: Run
    left: list[str]
    after_full: Run
    best: Run
    unsharded: Run
    became_sharded: Run
    became_whole: Run


def _waits_for_the_one_before(snapshots: Snapshots) -> bool:
    if snapshots._writer:
        snapshots._writer.join()
    return False


def _on_two_hosts(rank: int, size: int, folder: Path) -> Found:
    os.environ |= {"LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
    gradient_buckets.BUCKET = 4000
    world = World(rank, size, "gloo")

    def trained(name: str, precision: str = "bf16", **changes: Any) -> Run:
        job = job_of(folder / f"{name}-{rank}", precision, **changes)
        return run(job, world, validation=VALIDATION)

    whole = trained("whole", **SAVED)
    # killed after a checkpoint; the resumed run has another initial model, and only host 1 has a
    # checkpoint
    job = job_of(folder / f"killed-{rank}", **SAVED)
    with killed_at(7):
        run(job, world)
    if rank == 0:
        (job.run_dir / "checkpoints").rename(folder / "lost")
    other = make_model("bert")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    resumed = run(job, world, other)

    # a full disk on one host: it saves neither snapshots nor checkpoints
    write_tensors = state_files._write_tensors

    def full(*arguments: Any) -> str:
        if rank == 1:
            raise OSError(28, "No space left on device")
        return write_tensors(*arguments)

    state_files._write_tensors = full
    usual, Snapshots.is_pausing = Snapshots.is_pausing, _waits_for_the_one_before
    # a snapshot after each step
    job = replace(job_of(folder / f"full-{rank}", **SAVED), snapshot_seconds=1e-9)
    with killed_at(6):
        run(job, world)
    for thread in threading.enumerate():
        if "_write" in thread.name:
            thread.join()
    state_files._write_tensors, Snapshots.is_pausing = write_tensors, usual
    left = sorted(path.name for path in job.run_dir.glob("*/*-*"))
    after_full = run(job, world)

    with weights_that_wait():
        best = trained("best", "fp32", **BEST)
    job = replace(job_of(folder / f"flat-{rank}", "fp32", **BEST), shard_optimizer=False)
    flat = run(job, world, validation=VALIDATION)

    def switched(sharded_first: bool) -> Run:
        """Resume from step 4 with shards if the killed run had none, and vice versa."""
        name = f"switched-{sharded_first}-{rank}"
        job = replace(job_of(folder / name, "fp32", **SAVED), shard_optimizer=sharded_first)
        with killed_at(7):
            run(job, world)
        return run(replace(job, shard_optimizer=not sharded_first), world)

    return Found(
        whole, resumed, left, after_full, best, flat, switched(False), switched(True)
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[Found]:
    return on_ranks(_on_two_hosts, 2, folder, folder)


def test_a_resumed_training_is_the_same_to_the_last_bit(found: list[Found]) -> None:
    head = found[0]
    assert head.resumed.notices[-1] == "resumed after step 4"
    assert head.resumed.digests[-1] == head.whole.digests[-1]
    assert head.resumed.losses[-6:] == head.whole.losses[-6:]


@pytest.mark.usefixtures("found")
def test_two_hosts_have_the_same_whole_checkpoint(folder: Path) -> None:
    places = [folder / f"whole-{rank}/runs/here/checkpoints/checkpoint-8" for rank in (0, 1)]
    manifests = [json.loads((place / "manifest.json").read_text()) for place in places]
    for name in ("state.safetensors", "model.safetensors"):
        assert manifests[0][name] == manifests[1][name]
    assert all(state_files.is_whole(place) for place in places)


def test_each_logged_step_has_what_every_rank_waited(found: list[Found]) -> None:
    events = found[0].whole.of("communication")
    assert [event["step"] for event in events] == list(range(1, 11))
    first, last = events[0], events[-1]
    assert len(last["waited_seconds"]) == 2
    assert 0 < max(last["waited_seconds"]) < last["train_seconds"]
    for field in ("train_seconds", "tokens", "sent_bytes"):
        assert last[field] > first[field] > 0


def test_a_full_disk_costs_a_host_its_own_copies(found: list[Found]) -> None:
    assert found[0].left == ["checkpoint-4", "snapshot-5"]
    assert found[1].left == []
    notices = found[0].after_full.notices
    assert any(re.match(r"no checkpoint of step 4 on \S+ \(rank 1\): ", text) for text in notices)
    # resumed from the other host's snapshot, which is newer than the checkpoint
    assert notices[-1] == "resumed after step 5"
    assert found[0].after_full.digests[-1] == found[0].whole.digests[-1]


def test_the_best_model_is_that_of_an_unsharded_training(found: list[Found]) -> None:
    ours, theirs = found[0].best, found[0].unsharded
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-5)
    assert ours.result.metrics == pytest.approx(theirs.result.metrics, rel=1e-5)
    for (name, one), other in zip(
        ours.model.state_dict().items(), theirs.model.state_dict().values(), strict=True
    ):
        assert one.dtype == other.dtype == torch.float32
        assert torch.allclose(one, other, atol=1e-5), name


@pytest.mark.parametrize("now", ["became_sharded", "became_whole"])
def test_a_training_is_the_same_when_it_becomes_sharded_and_the_reverse(
    found: list[Found], now: str
) -> None:
    run, never = getattr(found[0], now), found[0].unsharded.losses
    assert run.notices[-1] == "resumed after step 4"
    assert run.losses == pytest.approx([*never[:6], *never[4:]], rel=1e-5)
    other = found[0].became_whole if now == "became_sharded" else found[0].became_sharded
    for (name, one), theirs in zip(
        run.model.state_dict().items(), other.model.state_dict().values(), strict=True
    ):
        assert torch.allclose(one, theirs, atol=1e-5), name


def _load(
    rank: int, size: int, state: Path, shard: bool
) -> tuple[dict[str, torch.Tensor], str, Run]:
    gradient_buckets.BUCKET = 4000
    job = replace(job_of(state.parent / f"{size}-{shard}-{rank}", **STEPS), shard_optimizer=shard)
    world = World(rank, size, "gloo")
    optimizer = make_optimizer_step(job, make_model("bert"), size)
    changed = replace(
        job.recipe.training, resume_from_checkpoint=str(state), gradient_accumulation_steps=2
    )
    job = replace(job, recipe=replace(job.recipe, training=changed))
    layout = state_layout(make_model("bert"))
    resume(job, optimizer, world, TrainState(layout=layout), ProgressLog())
    done = run(job, world)
    return whole_tensors(optimizer.state()), optimizer.digest(), done


@pytest.mark.usefixtures("world")
def test_a_state_is_that_of_any_number_of_ranks(
    found: list[Found], folder: Path, tmp_path: Path
) -> None:
    """A state fits any number of ranks, sharded or not, in both directions."""
    saved = folder / "whole-1/runs/here/checkpoints/checkpoint-8"
    exact = load_file(saved / "state.safetensors")
    checked = {event["step"]: event["sha256"] for event in found[0].whole.of("parameters")}
    (tmp_path / "1").mkdir()
    (tmp_path / "3").mkdir()
    for loaded, own, done in (
        _load(0, 1, saved, False),
        on_ranks(_load, 3, tmp_path / "3", saved, True)[2],
        on_ranks(_load, 1, tmp_path / "1", saved, True)[0],
    ):
        assert loaded.keys() == exact.keys()
        assert all(torch.equal(loaded[name], exact[name]) for name in exact)
        assert own == checked[8]
        if done.losses:
            assert done.losses == pytest.approx(found[0].whole.losses[8:], rel=2e-2)
    model = AutoModelForSequenceClassification.from_pretrained(saved)
    flat = torch.cat([p.flatten() for p in model.parameters()]).sort().values
    weights = exact["master_weights"]
    assert torch.equal(flat[flat != 0], weights[weights != 0].sort().values)


def _change(rank: int, _: int, what: str) -> str:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    optimizer = ShardedOptimizerStep(model, Training(), torch.bfloat16, 1)
    check_equal_on_ranks(optimizer.digest(), 1)
    if rank == 1:
        if what == "matrix":
            model[0].weight.data[3, 3] += 1
        elif what == "norm":
            model[1].weight.data[3] += 1e-6
    with pytest.raises(TrainError) as raised:
        check_equal_on_ranks(optimizer.digest(), 20)
    return raised.value.message


@pytest.mark.parametrize("what", ["matrix", "norm"])
def test_a_rank_whose_model_has_other_weights_is_named(tmp_path: Path, what: str) -> None:
    for message in on_ranks(_change, 3, tmp_path, what):
        assert "the parameters on ranks [1] differ from the parameters on ranks [0, 2]" in message


def _save_without_space(rank: int, size: int, folder: Path) -> Path | None:
    """Save while the disk of every rank is full."""
    os.environ |= {"LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
    job = job_of(folder / f"host{rank}")
    optimizer = make_optimizer_step(job, make_model("bert"), size)
    checkpoints.MARGIN = 1e12
    saved = Checkpoints(job, 0, World(rank, size, "gloo"), ProgressLog(), None)
    place = saved.save(optimizer, make_task_of(job), TrainState(3))
    assert len({optimizer.digest() for _ in range(2)}) == 1
    return place


def test_ranks_whose_disks_are_full_go_on(tmp_path: Path) -> None:
    assert on_ranks(_save_without_space, 2, tmp_path, tmp_path) == [None, None]
