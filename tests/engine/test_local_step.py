"""Local steps with exchanges between hosts, against their formulas, and in trainings."""

import contextlib
import os
import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ftcluster_common.recipe import Training
from ftcluster_train.comm import all_reduce
from ftcluster_train.comm.all_reduce import BLOCK, all_reduce_quantized, pack, unpack
from ftcluster_train.comm.world import World
from ftcluster_train.engine import loop
from ftcluster_train.engine.data.sampler import share_of_rank
from ftcluster_train.engine.optim.flat_step import FlatOptimizerStep, LocalOptimizerStep
from ftcluster_train.errors import TrainError, TrainingStopped
from tests.engine.jobs import Run, make_job, make_samples
from tests.engine.jobs import run as run_once
from tests.engine.models import VOCABULARY, make_model
from tests.engine.ranks import LENGTH, on_ranks

SETTINGS = Training(
    learning_rate=1e-2, weight_decay=0.1, sync="local", sync_steps=4, outer_learning_rate=0.6,
    outer_momentum=0.5,
)  # fmt: skip
HOSTS = [[0, 1], [2]]  # the ranks of each host
BATCH, STEPS = 12, 11
SAMPLES = make_samples("text-classification", 60)
LOCAL: dict[str, Any] = {
    "sync": "local", "sync_steps": 3, "batch_size": 12, "max_steps": 10, "eval_strategy": "steps",
    "eval_steps": 5,
}  # fmt: skip


def _tokens() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(VOCABULARY, (STEPS * BATCH, LENGTH), generator=generator)


def _loss(model: Any, samples: range, ranks: list[int], world: int) -> tuple[torch.Tensor, float]:
    """Return the loss of some ranks' samples over the whole batch, and these ranks' share."""
    own = [sample for rank in ranks for sample in share_of_rank(samples, rank, world)]
    tokens = _tokens()[own]
    return model(input_ids=tokens, labels=tokens).loss * len(own) / len(samples), len(own)


def _batches() -> list[range]:
    return [range(step * BATCH, (step + 1) * BATCH) for step in range(STEPS)]


def _by_formula() -> torch.Tensor:
    """Return the common weights after all steps and a last exchange, computed without rounding."""
    models = [make_model("gpt2", "causal-lm").eval() for _ in HOSTS]
    steps = [FlatOptimizerStep(model, SETTINGS, torch.float32, 1) for model in models]
    weights = [step.weights.master_weights for step in steps]
    shares = [len(ranks) / 3 for ranks in HOSTS]
    common, momentum = weights[0].clone(), torch.zeros_like(weights[0])
    sent: list[torch.Tensor] = []
    beta, rate = SETTINGS.outer_momentum, SETTINGS.outer_learning_rate

    def finish() -> None:
        mean = sum(share * own for share, own in zip(shares, sent, strict=True))
        momentum.mul_(beta).add_(mean)
        outer = rate * (mean + beta * momentum)
        common.sub_(outer)
        for own, difference in zip(weights, sent, strict=True):
            own.add_(difference - outer)
        sent.clear()

    for number, samples in enumerate(_batches(), start=1):
        for model, step, ranks, share in zip(models, steps, HOSTS, shares, strict=True):
            loss, _ = _loss(model, samples, ranks, 3)
            step.backward(loss / share, last=True)
            step.step()
        if number % 4 == 2 and sent:
            finish()
        if number % 4 == 0:
            sent = [common - own for own in weights]
    if sent:
        finish()
    sent = [common - own for own in weights]
    finish()
    return common


def _learn(rank: int, size: int, dtype: Any) -> tuple[torch.Tensor, str]:
    os.environ["GROUP_RANK"] = str(next(n for n, ranks in enumerate(HOSTS) if rank in ranks))
    all_reduce.CHUNK = 5000
    model = make_model("gpt2", "causal-lm").eval()
    step = LocalOptimizerStep(model, replace(SETTINGS, sync_dtype=dtype), torch.float32)
    for samples in _batches():
        loss, _ = _loss(model, samples, [rank], size)
        step.backward(loss, last=True)
        step.step()
    step.synchronize()
    step.synchronize()  # there is nothing to exchange
    return step.weights.master_weights.clone(), step.digest()


def _learn_unevenly(rank: int, size: int) -> bool:
    """Return True if a worker's gradients are the mean over its own samples."""
    os.environ["GROUP_RANK"] = str(rank)
    model, plain = (make_model("gpt2", "causal-lm").eval() for _ in range(2))
    step = LocalOptimizerStep(model, SETTINGS, torch.float32)
    step.start_batch([2, 1])
    loss, count = _loss(model, range(3), [rank], size)
    step.backward(loss, last=True)
    (_loss(plain, range(3), [rank], size)[0] * 3 / count).backward()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    found = [
        (step.gradients.flat[step.weights.layout.slices[one]].view(one.shape), other.grad)
        for one, other in pairs
    ]
    step.step()  # the other rank waits for the flags
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in found)


def test_a_worker_with_fewer_samples_of_the_last_batch_counts_them_all(tmp_path: Path) -> None:
    assert on_ranks(_learn_unevenly, 2, tmp_path) == [True, True]


def _learn_all(rank: int, size: int) -> dict[str, Any]:
    return {dtype: _learn(rank, size, dtype) for dtype in ("bf16", "int8")}


def test_hosts_with_several_ranks_take_the_steps_of_the_formula(tmp_path: Path) -> None:
    start = FlatOptimizerStep(make_model("gpt2", "causal-lm"), SETTINGS, torch.float32, 1)
    expected = _by_formula()
    moved = float((expected - start.weights.master_weights).norm())
    found = on_ranks(_learn_all, 3, tmp_path)
    for dtype, tolerance in (("bf16", 0.002), ("int8", 0.02)):
        assert len({of_rank[dtype][1] for of_rank in found}) == 1  # the digests are equal
        for of_rank in found:
            assert torch.equal(of_rank[dtype][0], found[0][dtype][0])
        assert float((found[0][dtype][0] - expected).norm()) / moved < tolerance


def _sums(rank: int, size: int) -> dict[str, torch.Tensor]:
    found = {}
    for dtype in ("bf16", "int8"):
        own = torch.randn(1000, generator=torch.Generator().manual_seed(rank)) * 10.0**rank
        total = torch.empty(1000)
        all_reduce_quantized(own, total, dtype, None)  # type: ignore[arg-type]
        everything = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(everything, own)
        found[dtype] = total
        found[f"{dtype} of all"] = torch.stack(everything).sum(0)
    return found


def test_a_sum_is_that_of_what_was_sent(tmp_path: Path) -> None:
    for found in on_ranks(_sums, 2, tmp_path):
        for dtype, relative in (("bf16", 2**-8), ("int8", 1 / 127)):
            total, expected = found[dtype], found[f"{dtype} of all"]
            assert float((total - expected).abs().max()) <= relative * float(expected.abs().max())


def test_int8_has_a_scale_for_each_row() -> None:
    values = torch.randn(3, BLOCK) * torch.tensor([[1e-30], [1.0], [0.0]])
    wire = pack(values, "int8")
    assert wire.shape == (3, BLOCK + 4)
    step = values.abs().amax(1, keepdim=True) / 127
    assert ((unpack(wire, "int8") - values).abs() <= step * 0.501).all()


@dataclass(frozen=True)
class Found:
    """The state of one of two hosts after some trainings."""

    whole: Run
    resumed: Run
    stopped: str
    not_finite: str
    left: list[str]


def _job(folder: Path, **changes: Any) -> Any:
    job = make_job(folder / "runs/here", "text-classification", "bf16", **{**LOCAL, **changes})
    return replace(job, prefix=folder)


def _run(job: Any, world: World, **options: Any) -> Run:
    shutil.rmtree(job.run_dir / "samples", ignore_errors=True)
    validation = make_samples("text-classification", 20, seed=5)
    return run_once(job, make_model("bert"), SAMPLES, world, validation=validation, **options)


class Killed(Exception):
    """Simulates killed ranks."""


def _train(rank: int, size: int, folder: Path) -> Found:
    os.environ |= {"LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
    world = World(rank, size, "gloo")
    whole = _run(_job(folder / f"whole-{rank}", save_strategy="steps", save_steps=4), world)

    job = replace(_job(folder / f"killed-{rank}"), snapshot_seconds=1e-6)
    usual, loop.report = loop.report, _killed_at(8)
    with contextlib.suppress(Killed):
        _run(job, world)
    loop.report = usual
    dist.barrier()
    resumed = _run(job, world)

    stopped = ""
    job = _job(folder / f"stopped-{rank}")
    try:
        _run(job, world, stop_asked=lambda: rank == 1)
    except TrainingStopped:
        stopped = ",".join(path.name for path in (job.run_dir / "checkpoints").iterdir())

    backward = LocalOptimizerStep.backward
    calls = []

    def sometimes_nan(step: LocalOptimizerStep, loss: torch.Tensor, last: bool) -> None:
        calls.append(loss)
        backward(step, loss * torch.nan if rank == 1 and len(calls) == 5 else loss, last)

    LocalOptimizerStep.backward = sometimes_nan
    job = _job(folder / f"nan-{rank}")
    not_finite = ""
    try:
        _run(job, world)
    except TrainError as error:
        not_finite = error.message
    LocalOptimizerStep.backward = backward
    left = [path.name for path in (job.run_dir / "checkpoints").iterdir()]
    return Found(whole, resumed, stopped, not_finite, left)


def _killed_at(step: int) -> Any:
    """Kill the ranks when the earlier snapshot is on the disk."""

    def report(at: int, doing: str) -> None:
        if (at, doing) == (step, "forward"):
            for thread in threading.enumerate():
                if "_write" in thread.name:
                    thread.join()
            raise Killed

    return report


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """Yield the states of both hosts."""
    folder = tmp_path_factory.mktemp("local")
    results: list[Found] = on_ranks(_train, 2, folder, folder)
    return results


def test_hosts_evaluate_and_save_the_same_model(found: list[Found]) -> None:
    first, second = (of_host.whole for of_host in found)
    assert first.digests == second.digests
    assert first.of("evaluation")[-1]["metrics"] == second.of("evaluation")[-1]["metrics"]
    assert [event["step"] for event in first.of("checkpoint")] == [4, 8, 10]
    assert first.losses[-1] < first.losses[0]
    states = zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    # rank 0 has the weights in fp32
    assert all(torch.equal(one.to(other.dtype), other) for one, other in states)


def test_a_killed_training_goes_on_from_a_snapshot_of_one_host(found: list[Found]) -> None:
    for of_host in found:
        (notice,) = of_host.resumed.notices
        assert notice.startswith("resumed after step")
        assert of_host.resumed.of("step")[-1]["step"] == 10
    assert found[0].resumed.digests[-1] == found[1].resumed.digests[-1]


def test_all_hosts_stop_where_one_is_asked(found: list[Found]) -> None:
    assert [of_host.stopped for of_host in found] == ["checkpoint-1", "checkpoint-1"]


def test_a_loss_that_is_not_finite_on_one_host_ends_all(found: list[Found]) -> None:
    for of_host in found:
        assert "not finite at step 5" in of_host.not_finite
        assert of_host.left == ["checkpoint-4"]
