"""Resumed trainings are bit-identical, and resume only from complete files."""

import contextlib
import itertools
import json
import math
import os
import shutil
import signal
import socket
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_train.comm.world import World
from ftcluster_train.engine import checkpoints, loop, snapshots, state_files
from ftcluster_train.engine.optim import flat_params
from ftcluster_train.engine.optim.base import State
from ftcluster_train.engine.rank import listen_for_stop
from ftcluster_train.engine.train_state import TrainState
from ftcluster_train.errors import TrainError, TrainingStopped
from ftcluster_train.io import fsync
from tests.engine.jobs import Run, make_job, make_samples, run_rank
from tests.engine.jobs import run as run_once
from tests.engine.models import make_model, make_tokenizer
from tests.engine.ranks import on_ranks
from tests.engine.test_run_on_ranks import KINDS
from tests.engine.test_run_on_ranks import job_of as job_of_kind

SAMPLES = make_samples("text-classification", 60)
STEPS: dict[str, Any] = {
    "batch_size": 12, "lr_scheduler_type": "cosine", "warmup_steps": 2, "weight_decay": 0.1,
    "save_strategy": "steps", "save_steps": 4,
}  # fmt: skip


def job_of(folder: Path, precision: str = "bf16", **changes: Any) -> Job:
    job = make_job(folder / "runs/here", "text-classification", precision, **{**STEPS, **changes})
    return replace(job, prefix=folder)


def run(job: Job, model: PreTrainedModel, world: World, **options: Any) -> Run:
    """Train, also in a folder in which this job has trained before."""
    shutil.rmtree(job.run_dir / "samples", ignore_errors=True)
    return run_once(job, model, SAMPLES, world, **options)


class Killed(Exception):
    """Simulates a killed rank."""


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
    # another initial model, because everything comes from the checkpoint
    other = make_model("bert")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    resumed = run(job, other, world)
    assert resumed.digests[-1] == whole.digests[-1]
    assert resumed.losses[-6:] == whole.losses[-6:]
    (notice,) = resumed.notices
    assert notice == "resumed after step 4"
    steps = [event["step"] for event in resumed.of("step")]
    assert steps == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 10]


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize(
    "name", ["tags", "masks", "summaries", "distilled classes", "distilled embeddings"]
)
def test_a_resumed_run_of_a_task_is_the_same_to_the_last_bit(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume with samples that are redrawn in each epoch, or with a teacher's results."""
    jobs = [
        job_of_kind(tmp_path / folder, KINDS[name], "runs/one", save_strategy="steps", save_steps=4)
        for folder in ("whole", "killed")
    ]
    whole = run_rank(jobs[0])
    with monkeypatch.context() as patch:
        killed_at(patch, 6)
        with pytest.raises(Killed):
            run_rank(jobs[1])
    resumed = run_rank(jobs[1])

    def of(events: list[dict[str, Any]], event: str, field: str) -> list[Any]:
        return [one[field] for one in events if one["event"] == event]

    assert of(resumed, "step", "step") == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert of(resumed, "step", "loss")[5:] == of(whole, "step", "loss")[4:]
    assert of(resumed, "parameters", "sha256")[-1] == of(whole, "parameters", "sha256")[-1]
    assert resumed[-1]["metrics"] == whole[-1]["metrics"]


def test_another_run_continues_from_the_checkpoints_of_the_first(
    tmp_path: Path, world: World
) -> None:
    first = job_of(tmp_path, max_steps=4)
    run(first, make_model("bert"), world)
    second = replace(
        make_job(tmp_path / "runs/later", "text-classification", "bf16", **STEPS, max_steps=6),
        # the previous run ended without saving a state
        prefix=tmp_path, resume=("between", "here"),
    )  # fmt: skip
    assert [e["step"] for e in run(second, make_model("bert"), world).of("step")] == [5, 6]


@pytest.mark.parametrize("file", ["state.safetensors", "model.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, world: World, file: str) -> None:
    job = job_of(tmp_path, max_steps=8)
    run(job, make_model("bert"), world)
    newest = job.run_dir / "checkpoints/checkpoint-8" / file
    newest.write_bytes(newest.read_bytes()[:-10])
    resumed = run(job, make_model("bert"), world)
    messages = resumed.notices
    assert any("checkpoint-8" in text and "damaged" in text for text in messages)
    assert messages[-1] == "resumed after step 4"


def test_the_state_of_another_model_is_refused(tmp_path: Path, world: World) -> None:
    job = job_of(tmp_path, max_steps=4)
    run(job, make_model("bert"), world)
    with pytest.raises(TrainError) as caught:
        run(job, make_model("distilbert"), world)
    assert "another model" in caught.value.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        # equal sizes: one layer would get another layer's weights
        (lambda name: name.replace("query", "q_proj"), "another model, with bert.encoder.layer."),
        (lambda name: name.replace("layer.0", "layer.x").replace("layer.1", "layer.0").replace(
            "layer.x", "layer.1"), "in another order"),
    ],
)  # fmt: skip
def test_the_state_of_other_parameters_is_refused(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, change: Any, said: str
) -> None:
    """Two releases of a library may have parameters of equal sizes in another order."""
    job = job_of(tmp_path, max_steps=4)
    run(job, make_model("bert"), world)
    layout = flat_params.state_layout
    monkeypatch.setattr(loop, "state_layout", lambda model: [*map(change, layout(model))])
    with pytest.raises(TrainError) as caught:
        run(job, make_model("bert"), world)
    assert said in caught.value.message


def test_snapshots_are_written_beside_the_training(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(job_of(tmp_path, max_steps=6, save_strategy="no"), snapshot_seconds=1e-6)
    folder = job.run_dir / "snapshots"
    monkeypatch.setattr(snapshots, "COST_SHARE", math.inf)  # a snapshot after each step
    with monkeypatch.context() as patch:
        killed_at(patch, 4)
        # each snapshot is written before the next step, so the test knows which one exists
        started = snapshots.threading.Thread.start

        def start(thread: Any) -> None:
            started(thread)
            thread.join()

        patch.setattr(snapshots.threading.Thread, "start", start)
        with pytest.raises(Killed):
            run(job, make_model("bert"), world)
    assert [path.name for path in folder.iterdir()] == ["snapshot-3"]
    assert json.loads((folder / "snapshot-3/state.json").read_text())["step"] == 3
    resumed = run(job, make_model("bert"), world)
    assert resumed.notices[-1] == "resumed after step 3"
    whole = run(job_of(tmp_path / "whole", max_steps=6), make_model("bert"), world)
    assert resumed.digests[-1] == whole.digests[-1]


def test_a_full_disk_costs_the_snapshot_only(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_files, "_write_tensors", full)
    monkeypatch.setattr(snapshots, "COST_SHARE", math.inf)
    job = replace(job_of(tmp_path, max_steps=3, save_strategy="no"), snapshot_seconds=1e-6)
    done = run(job, make_model("bert"), world)
    assert done.of("step")[-1]["step"] == 3
    assert "no snapshot of step 1: [Errno 28]" in done.notices[0]
    assert done.of("notice")[0]["failed_save"] == "snapshot"


def test_a_full_disk_costs_the_checkpoint_and_not_the_one_before(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, max_steps=12, save_total_limit=1)
    folder = job.run_dir / "checkpoints"
    written: list[int] = []
    write_state = checkpoints.write_state

    def full(partial: Path, header: Any, pieces: Any, state: TrainState) -> None:
        written.append(state.step)
        if state.step == 8:
            assert {path.name for path in folder.iterdir()} == {"checkpoint-4", partial.name}
            raise OSError(28, "No space left on device")
        write_state(partial, header, pieces, state)

    monkeypatch.setattr(checkpoints, "write_state", full)
    done = run(job, make_model("bert"), world)
    assert done.of("step")[-1]["step"] == 12
    (notice,) = done.notices
    assert f"no checkpoint of step 8 on {socket.gethostname()} (rank 0): the disk of" in notice
    assert done.of("notice")[0]["failed_save"] == "checkpoint"
    assert [path.name for path in folder.iterdir()] == ["checkpoint-12"]

    # space is checked before anything is written
    monkeypatch.setattr(
        checkpoints.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0)
    )  # type: ignore[attr-defined]
    done = run(job_of(tmp_path / "b", max_steps=4), make_model("bert"), world)
    assert "has 0 bytes free" in done.notices[0]
    assert written == [4, 8, 12]
    assert list((tmp_path / "b/runs/here/checkpoints").iterdir()) == []


TO_STOP: dict[str, Any] = {"max_steps": 10, "save_strategy": "no"}


def _on_two_hosts(rank: int, size: int, folder: Path) -> tuple[Run, Run]:
    """Train as one of two ranks on separate hosts: once to the end, and once until a stop.

    Returns:
        The whole training, and the stopped training after it was resumed without the head's
        checkpoint.
    """
    os.environ |= {"LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
    world, report = World(rank, size, "gloo"), loop.report
    whole = run(job_of(folder / f"whole{rank}", **TO_STOP), make_model("bert"), world)

    def signalled(step: int, doing: str) -> None:
        if (rank, step, doing) == (1, 3, "forward"):
            os.kill(os.getpid(), signal.SIGTERM)
        report(step, doing)

    job = job_of(folder / f"host{rank}", **TO_STOP)
    loop.report = signalled
    with pytest.raises(TrainingStopped):
        run(job, make_model("bert"), world, stop_asked=listen_for_stop())
    loop.report = report
    shutil.copytree(job.run_dir, folder / f"left{rank}")
    if rank == 0:
        shutil.rmtree(job.run_dir / "checkpoints")
    return whole, run(job, make_model("bert"), world)


def test_ranks_that_are_asked_to_stop_save_on_two_hosts_and_resume_to_the_last_bit(
    tmp_path: Path, world: World
) -> None:
    (whole, resumed), _ = on_ranks(_on_two_hosts, 2, tmp_path, tmp_path)
    left = [next((tmp_path / f"left{rank}/checkpoints").iterdir()) for rank in (0, 1)]
    (step,) = {int(path.name.removeprefix("checkpoint-")) for path in left}
    assert step in (3, 4)  # the signal arrived while rank 1 began step 3
    states = [json.loads((path / "manifest.json").read_text()) for path in left]
    for name in ("state.safetensors", "model.safetensors"):
        assert states[0][name] == states[1][name]
    assert resumed.notices[-1] == f"resumed after step {step}"
    assert resumed.digests[-1] == whole.digests[-1]

    # on one rank: the same batches, and a line with the difference
    shutil.move(tmp_path / "left1", tmp_path / "alone/runs/here")
    alone = run(job_of(tmp_path / "alone", **TO_STOP), make_model("bert"), world)
    assert alone.notices[-1].endswith("changed since then: ranks from 2 to 1")
    assert alone.losses == pytest.approx(whole.losses[-len(alone.losses) :], rel=1e-2)


TASK = types.SimpleNamespace(
    tokenizer=make_tokenizer(),
    write_files=lambda *_: None,
    recipe=(recipe := Recipe("bert", "bert", "", TextClassification())),
    used_as=recipe,
    columns={},
    trained_rows=None,
)
MODEL = make_model("bert"), TASK


def _save_until(folder: Path, stop_before: int) -> None:
    """Save checkpoint 2 and remove 1 in a new process; end before a certain change of a file."""
    changes = itertools.count()

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod") or (
            event == "open" and arguments[1] not in ("r", "rb", None)
        )
        if (writes or event == "fsync") and next(changes) == stop_before:
            os.kill(os.getpid(), signal.SIGKILL)

    fsync, digest = os.fsync, state_files.hashlib.sha256

    def counted_fsync(descriptor: int) -> None:
        count("fsync", ())
        fsync(descriptor)

    class Digest:
        """A hash that calls a function between the pieces of a large file."""

        def __init__(self) -> None:
            self._digest = digest()

        def update(self, piece: Any) -> None:
            count("fsync", ())
            self._digest.update(piece)

        def hexdigest(self) -> str:
            return self._digest.hexdigest()

    os.fsync = counted_fsync
    state_files.hashlib = types.SimpleNamespace(sha256=Digest)  # type: ignore[assignment]
    sys.addaudithook(count)
    save(folder, 2)
    checkpoints.keep_newest([folder / "checkpoint-1", folder / "checkpoint-2"], 1, None)


def save(folder: Path, step: int) -> None:
    state = State.of(
        {"master_weights": torch.full((10_000,), float(step)), "buffer_0": torch.tensor(step)}
    )
    checkpoints.save_model(
        *MODEL, folder / f"checkpoint-{step}",
        lambda partial: state_files.write_state(
            partial, state.header, state.pieces(), TrainState(step)
        ),
    )  # fmt: skip


def test_a_kill_at_any_write_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "PIECE", 10_000)
    (tmp_path / "before").mkdir()
    save(tmp_path / "before", 1)
    left, code = [], -1
    while code != 0:
        folder = tmp_path / f"after-{len(left)}"
        shutil.copytree(tmp_path / "before", folder)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                _save_until(folder, len(left))
                os._exit(0)
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL)
        found = state_files.newest_state([folder], lambda path: pytest.fail(f"{path} is damaged"))
        assert found, f"killed at change {len(left)}"
        step, path = found
        weights = load_file(path / "state.safetensors")
        assert (weights["master_weights"].mean(), weights["buffer_0"]) == (step, step)
        fsync.remove_leftovers(folder)
        assert {one.name for one in folder.iterdir()} <= {"checkpoint-1", "checkpoint-2"}
        left.append(step)
        shutil.rmtree(folder)
    assert sorted(left) == left  # checkpoint 1 first, then 2
    assert left.count(1) > 15
    assert left.count(2) > 3


def test_snapshots_cost_a_hundredth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Optimizer:
        def state(self) -> State:
            return State.of({"master_weights": torch.zeros(2_000_000)})

    seconds = [0.0]
    monkeypatch.setattr(snapshots.time, "monotonic", lambda: seconds[0])
    taken = snapshots.Snapshots(tmp_path, 1e-9, False, World(0, 1, "gloo"), notice=pytest.fail)
    for _ in range(3):
        seconds[0] += 1e-6
        if not taken.is_pausing():
            taken.take(Optimizer(), TrainState(1))  # type: ignore[arg-type]
        taken.wait()
    assert len(taken.costs) == 1
    seconds[0] += 101 * taken.costs[0]
    assert not taken.is_pausing()
    taken.take(Optimizer(), TrainState(2))  # type: ignore[arg-type]
    taken.wait()
    assert len(taken.costs) == 2


def test_the_best_model_of_the_run_before_is_kept(tmp_path: Path, world: World) -> None:
    each = {
        **STEPS, "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1,
        "load_best_model_at_end": True, "metric_for_best_model": "accuracy",
    }  # fmt: skip
    validation = make_samples("text-classification", 20, seed=5)

    def trained(name: str, before: str, **changes: Any) -> Run:
        job = make_job(tmp_path / "runs" / name, "text-classification", "fp32", **each, **changes)
        job = replace(job, prefix=tmp_path, resume=(before,) if before else ())
        return run_once(job, make_model("bert"), SAMPLES, world, validation)

    first = trained("first", "", max_steps=4)
    # an equally good later step does not change the best step
    later = trained("later", "first", max_steps=5, learning_rate=1e-30)
    assert later.result.metrics == first.result.metrics
    for name, weights in later.model.state_dict().items():
        assert torch.equal(weights, first.model.state_dict()[name])
    # if no host has the best checkpoint any more, the last checkpoint is used, with a notice
    shutil.rmtree(tmp_path / "runs/first/checkpoints")
    last = trained("last", "later", max_steps=6, learning_rate=1e-30)
    assert "using the model of the last step" in last.notices[-1]


def test_a_checkpoint_has_a_format_that_older_ones_lack(tmp_path: Path) -> None:
    """The previous release treats manifest entries as files."""
    save(tmp_path, 1)
    folder = tmp_path / "checkpoint-1"
    number = folder / "format.json"
    assert json.loads(number.read_text())["format"] == 1
    manifest = json.loads((folder / "manifest.json").read_text())
    assert all((folder / name).is_file() for name in manifest)
    assert "format.json" in manifest
    header = {
        "master_weights": (torch.float32, [10_000]), "buffer_0": (torch.int64, []),
    }  # fmt: skip
    assert state_files.read_tensors(folder, header)[1] == ""
    number.write_text('{"format": 99}')
    tensors, why = state_files.read_tensors(folder, header)
    assert tensors == {}
    assert f"{number} was written by a newer ftcluster (format 99" in why
    assert "ftcluster setup" in why
    number.unlink()  # as in a checkpoint of the previous release
    assert state_files.read_tensors(folder, header)[1] == ""
