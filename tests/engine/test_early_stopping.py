"""Early stopping ends a training after the same evaluation as EarlyStoppingCallback."""

import math
import random
from dataclasses import replace
from pathlib import Path

import torch
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ftcluster_common.recipe import Training
from ftcluster_train.comm.world import World
from ftcluster_train.engine.train_state import TrainState
from tests.engine.jobs import make_job, make_samples, run
from tests.engine.models import make_model


def theirs(values: list[float], patience: int, threshold: float, greater: bool) -> list[bool]:
    """Return if Trainer stops after each evaluation, using Trainer's own order of calls."""
    arguments = TrainingArguments(
        "unused", eval_strategy="epoch", save_strategy="epoch", metric_for_best_model="f1",
        greater_is_better=greater, load_best_model_at_end=True, use_cpu=True, report_to="none",
    )  # fmt: skip
    callback = EarlyStoppingCallback(patience, threshold)
    trainer = Trainer(torch.nn.Linear(1, 1), arguments, eval_dataset=[{}])
    state, found = TrainerState(), []
    trainer.state = state
    for value in values:
        control, metrics = TrainerControl(), {"eval_f1": value}
        callback.on_evaluate(arguments, state, control, metrics)
        trainer._determine_best_metric(metrics, None)
        found.append(control.should_training_stop)
    return found


def test_it_stops_after_the_same_evaluations() -> None:
    draw = random.Random(3)
    stopped = 0
    for number in range(40):
        patience, threshold = draw.randrange(1, 4), draw.choice([0.0, 0.05, 0.2])
        greater = bool(number % 2)
        values = [draw.choice([round(draw.random(), 2), math.nan]) for _ in range(12)]
        training = Training(
            early_stopping_patience=patience, early_stopping_threshold=threshold,
            metric_for_best_model="f1", greater_is_better=greater,
        )  # fmt: skip
        state, ours = TrainState(), []
        for state.step, value in enumerate(values, 1):
            state.metrics = {"f1": value}
            state.update_best(training)
            ours.append(state.stops(training))
        assert ours == theirs(values, patience, threshold, greater)
        stopped += any(ours)
    assert stopped > 10


def test_a_training_ends_early_with_its_best_model_also_where_it_is_resumed(
    tmp_path: Path, world: World
) -> None:
    samples, validation = (make_samples("text-classification", n, n) for n in (24, 9))
    each = {
        "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "load_best_model_at_end": True, "early_stopping_patience": 3,
    }  # fmt: skip

    def trained(name: str, before: str = "", **changes: object) -> object:
        # with a learning rate of 0 no evaluation is better than the first
        job = make_job(
            tmp_path / "runs" / name, "text-classification", max_steps=9, learning_rate=1e-30,
            **{**each, **changes},
        )  # fmt: skip
        job = replace(job, prefix=tmp_path, resume=(before,) if before else ())
        return run(job, make_model("bert"), samples, world, validation)

    whole = trained("whole")
    assert [event["step"] for event in whole.of("evaluation")] == [1, 2, 3, 4]
    assert "stopped early at step 4: loss was not better in 3 evaluations" in whole.notices[-1]
    (tmp_path / "runs/whole/checkpoints/checkpoint-4").rename(tmp_path / "lost-4")
    (tmp_path / "runs/whole/checkpoints/checkpoint-3").rename(tmp_path / "lost-3")
    rest = trained("rest", "whole")
    assert [event["step"] for event in rest.of("evaluation")] == [3, 4]
