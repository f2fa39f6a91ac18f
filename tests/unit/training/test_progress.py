"""What rank 0 tells: events for the control node, and the same numbers to the reports."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcluster_train.io.events import EventWriter
from ftcluster_train.training.progress import Tell
from ftcluster_train.training.trackers import Reports


class Noted:
    """A report that keeps what it is told."""

    def __init__(self) -> None:
        self.values: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.values.append((step, dict(values)))

    def close(self, failed: bool) -> None:
        pass


def told(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name != "time"}
        for line in lines
    ]


START = {
    "world_size": 2, "threads_per_rank": 1, "backend": "gloo", "precision": "fp32", "ipex": False,
    "train_samples": 80, "parameters": 9,
}  # fmt: skip


def test_a_step_has_what_is_left_and_the_report_has_trainers_names(tmp_path: Path) -> None:
    noted = Noted()
    tell = Tell(EventWriter(tmp_path), Reports({"noted": noted}, print))
    tell.start(40, 10, **START)
    tell.step(10, loss=0.5, norm=1.5, rate=1e-4, samples=320, seconds=5.0)
    tell.evaluation(10, {"accuracy": 0.9})
    assert told(tmp_path) == [
        {"event": "start", "steps": 40, "epochs": 4.0, **START},
        {
            "event": "step", "step": 10, "loss": 0.5, "grad_norm": 1.5, "learning_rate": 1e-4,
            "epoch": 1.0, "samples_per_second": 64.0, "remaining_seconds": 15.0,
        },
        {"event": "evaluation", "step": 10, "epoch": 1.0, "metrics": {"accuracy": 0.9}},
    ]  # fmt: skip
    assert noted.values == [
        (10, {"loss": 0.5, "grad_norm": 1.5, "learning_rate": 1e-4, "epoch": 1.0}),
        (10, {"eval_accuracy": 0.9, "epoch": 1.0}),
    ]


def test_the_other_ranks_tell_nothing() -> None:
    tell = Tell()
    tell.start(40, 10)
    tell.step(10, loss=0.5, norm=1.5, rate=1e-4, samples=320, seconds=5.0)
    tell.notice("3 samples were cut")
    tell.checkpoint(10, Path("checkpoint-10"))
