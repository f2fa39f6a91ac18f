"""Learning rates equal transformers' schedules, also after a resumption."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import get_scheduler

from ftcluster_train.comm.world import World
from tests.engine.jobs import make_job, make_samples, run
from tests.engine.models import make_model

STEPS, WARMUP, RATE = 7, 2, 1e-3
SCHEDULES: dict[str, dict[str, Any]] = {
    "linear": {},
    "cosine": {"num_cycles": 0.7},
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {"power": 2.0, "lr_end": 1e-5},
    "constant": {},
    "constant_with_warmup": {},
    "inverse_sqrt": {"timescale": 3},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 3},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates(tmp_path: Path, world: World, name: str) -> None:
    extra = SCHEDULES[name]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    theirs = get_scheduler(name, optimizer, WARMUP, STEPS, dict(extra))
    wanted = []
    for _ in range(STEPS):
        optimizer.step()
        theirs.step()
        wanted.append(theirs.get_last_lr()[0])
    job = make_job(
        tmp_path / "runs/one", "text-classification", max_steps=STEPS, warmup_steps=WARMUP,
        learning_rate=RATE, lr_scheduler_type=name, lr_scheduler_kwargs=extra,
        save_strategy="steps", save_steps=3,
    )  # fmt: skip
    job, samples = replace(job, prefix=tmp_path), make_samples("text-classification", 30)
    done = run(job, make_model("bert"), samples, world)
    assert [event["learning_rate"] for event in done.of("step")] == pytest.approx(wanted)
    for folder in (job.run_dir / "checkpoints").glob("checkpoint-[67]"):
        shutil.rmtree(folder)
    later = replace(job, run_dir=tmp_path / "runs/two", resume=("one",))
    later.run_dir.mkdir()
    rest = run(later, make_model("bert"), samples, world)
    assert [event["learning_rate"] for event in rest.of("step")] == pytest.approx(wanted[3:])
