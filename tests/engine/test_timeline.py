"""The parts of one step that a training on several ranks records for its report."""

import os
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.events import is_event
from ftcluster_train.comm.world import World
from ftcluster_train.engine.loop import RECORDED_STEP
from ftcluster_train.engine.optim import gradient_buckets
from tests.engine.jobs import Run, make_job, make_samples, run
from tests.engine.models import make_model
from tests.engine.ranks import on_ranks

SAMPLES = make_samples("text-classification", 60)
STEPS: dict[str, Any] = {"batch_size": 12, "max_steps": RECORDED_STEP + 2}
BUCKET = 4000  # elements


def _train(rank: int, size: int, folder: Path) -> dict[str, Run]:
    os.environ |= {"LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
    gradient_buckets.BUCKET = BUCKET
    runs = {}
    for name, changes in {
        "fp32": {"gradient_dtype": "fp32"},
        "bf16": {"gradient_dtype": "bf16"},
        "micro-batches": {"gradient_accumulation_steps": 2},
    }.items():
        job = make_job(folder / f"{name}-{rank}", "text-classification", "fp32", **STEPS, **changes)
        runs[name] = run(job, make_model("bert"), SAMPLES, World(rank, size, "gloo"))
    return runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("ranks")
    found: dict[str, Run] = on_ranks(_train, 2, folder, folder)[0]
    return found


def spans_of(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Return begins and ends of a run's only timeline, by kind."""
    [event] = run.of("timeline")
    assert is_event("timeline", event)
    assert event["step"] == RECORDED_STEP
    found: dict[str, list[tuple[float, float]]] = {}
    for kind, _note, began, ended in event["spans"]:
        assert 0 <= began <= ended
        found.setdefault(kind, []).append((began, ended))
    return found


@pytest.mark.parametrize("sent", ["fp32", "bf16"])
def test_each_bucket_is_exchanged_from_the_backward_pass_on(
    runs: dict[str, Run], sent: str
) -> None:
    spans = spans_of(runs[sent])
    elements = sum(parameter.numel() for parameter in make_model("bert").parameters())
    assert len(spans["exchange"]) >= elements / BUCKET
    [(_, forward)], [backward], [optimizer] = (
        spans[kind] for kind in ("forward", "backward", "optimizer")
    )
    assert forward <= backward[0] < spans["exchange"][0][0]
    assert backward[1] <= optimizer[0]
    assert max(ended for _, ended in spans["exchange"]) <= optimizer[1]
    if sent == "fp32":  # in bf16, a thread that is started late may miss this short backward pass
        assert spans["exchange"][0][0] < backward[1]
    assert all(optimizer[0] <= began < optimizer[1] for began, _ in spans["blocked"])


def test_notes_have_the_bytes_that_are_sent(runs: dict[str, Run]) -> None:
    sizes = {
        sent: [
            float(note.removesuffix(" MiB"))
            for kind, note, *_ in runs[sent].of("timeline")[0]["spans"]
            if kind == "exchange"
        ]
        for sent in ("fp32", "bf16")
    }
    assert max(sizes["fp32"]) == pytest.approx(4 * BUCKET / 2**20, rel=0.01)
    assert sum(sizes["bf16"]) == pytest.approx(sum(sizes["fp32"]) / 2, rel=0.01)


def test_only_the_last_micro_batch_exchanges(runs: dict[str, Run]) -> None:
    spans = spans_of(runs["micro-batches"])
    assert len(spans["forward"]) == len(spans["backward"]) == 2
    assert min(began for began, _ in spans["exchange"]) > spans["backward"][1][0]


def test_a_rank_alone_records_none(tmp_path: Path) -> None:
    [alone] = on_ranks(_train, 1, tmp_path, tmp_path)
    assert [alone[name].of("timeline") for name in alone] == [[], [], []]
