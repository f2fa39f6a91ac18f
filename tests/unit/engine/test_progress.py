"""What rank 0 writes: events for the control node, and the same values to the trackers."""

import json
from collections.abc import Mapping
from pathlib import Path

from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.trackers import Trackers
from ftcluster_train.io.events import EventWriter

STEP = {"step": 10, "loss": 0.5, "grad_norm": 1.5, "learning_rate": 1e-4, "epoch": 1.0}


class Recorder:
    """A tracker that keeps what is logged."""

    def __init__(self) -> None:
        self.values: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.values.append((step, dict(values)))

    def close(self, failed: bool) -> None:
        pass


def test_trackers_get_steps_and_evaluations_by_trainers_names(tmp_path: Path) -> None:
    recorder = Recorder()
    log = ProgressLog(EventWriter(tmp_path), Trackers({"recorder": recorder}, print))
    log.write("notice", message="3 samples were cut")
    log.write("step", **STEP, samples_per_second=64.0, train_seconds=5.0, remaining_seconds=1.0)
    log.write("evaluation", step=10, epoch=1.0, metrics={"accuracy": 0.9}, seconds=1.0)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["notice", "step", "evaluation"]
    assert events[1].items() >= {**STEP, "samples_per_second": 64.0}.items()
    assert recorder.values == [
        (10, {name: value for name, value in STEP.items() if name != "step"}),
        (10, {"eval_accuracy": 0.9, "epoch": 1.0}),
    ]


def test_the_other_ranks_write_nothing() -> None:
    ProgressLog().write("step", **STEP)
