"""Two ranks resume an interrupted training that continues saved adapters."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ftcluster_common.models.adapter_config import WEIGHTS
from ftcluster_common.protocol.job import EVALUATE
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.prepare import prepare
from tests.engine.forks import start
from tests.engine.jobs import read_events, result_of, run_rank
from tests.engine.runs import make_whole_job, write_data
from tests.engine.test_continued_adapters import (
    CHAT,
    DPO,
    EMBED,
    RERANK,
    ROWS,
    job_from,
    write_base,
)
from tests.engine.test_resumed_tasks import _rank, fields
from tests.programs import free_ports

IN_4_BIT = {"load_in_4bit": True}


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize(
    ("tasks", "kind", "options", "precision"),
    [
        ((CHAT, DPO), "llama", {}, "bf16"),
        ((CHAT, DPO), "llama", IN_4_BIT, "bf16"),
        ((EMBED, EMBED), "bert", {}, "bf16"),
        ((RERANK, RERANK), "bert", {}, "fp32"),
    ],
    ids=["bf16", "nf4", "embedder", "reranker"],
)
def test_two_ranks_resume_a_training_that_continues_adapters(
    tmp_path: Path, tasks: tuple[str, str], kind: str, options: dict[str, Any], precision: str
) -> None:
    """The losses and adapters equal those of a training on one rank without an interruption."""
    base = write_base(tmp_path / "base", tasks[0], kind)
    data = write_data(tmp_path / "data", {"train": ROWS[tasks[0]](40, 1)})
    first = make_whole_job(
        tmp_path / "runs/first", tasks[0], data, base, {"lora_r": 4, **options}, max_steps=4,
        learning_rate=1e-2, precision=precision,
    )  # fmt: skip
    adapters = result_of(first)["model"]
    training: dict[str, Any] = {
        "precision": precision, "max_steps": 4, "learning_rate": 1e-3, "adam_epsilon": 1e-4,
        "save_strategy": "steps", "save_steps": 2, "eval_strategy": "epoch",
    }  # fmt: skip
    job = job_from(tmp_path, tasks[1], adapters, "whole", options, **training)
    whole = run_rank(job)
    shutil.rmtree(job.run_dir / "checkpoints/checkpoint-4")

    job = job_from(tmp_path, tasks[1], adapters, "later", options, **training)
    job = replace(job, prefix=tmp_path, resume=("whole",))
    write_inputs(job.run_dir, prepare(job))
    start(_rank, 2, [job], free_ports(1), 2)
    resumed = read_events(job)
    assert fields(resumed, "step", "step") == [3, 4]
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    losses = fields(whole, "step", "loss")
    assert fields(resumed, "step", "loss") == pytest.approx(losses[2:], rel=tolerance)
    before, *after = (
        load_file(Path(folder) / WEIGHTS)
        for folder in (adapters, *(fields(run, "result", "model")[0] for run in (whole, resumed)))
    )
    for name, values in before.items():
        changes = [weights[name] - values for weights in after]
        assert changes[0].abs().max() > 0
        torch.testing.assert_close(changes[1], changes[0], rtol=0, atol=2e-4, msg=name)

    [model], [metrics] = (fields(resumed, "result", name) for name in ("model", "metrics"))
    if tasks[1] != DPO:  # whose evaluation lacks the reference
        recipe = replace(job.recipe, model=model, adapter_base=None)
        job = replace(
            job, run_dir=tmp_path / "runs/measured", purpose=EVALUATE, resume=(), recipe=recipe
        )
        assert result_of(job)["metrics"] == pytest.approx(metrics, rel=tolerance)
