"""Each architecture trains, has the gradients of plain transformers, and uses certain kernels.

The models are tiny, with layers of all kinds. The results are the table of docs/architectures.md;
FTCLUSTER_RENEW_ARCHITECTURES=1 writes it, otherwise each row is compared. Gradients in bf16 are
compared in test_gradients.
"""

import copy
import os
import statistics
from pathlib import Path

import pytest
import torch

from ftcluster_kernels import simd
from ftcluster_train import fast
from ftcluster_train.comm.world import World
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.patching import script_functions
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.architectures import Kind, Size, kinds, make_kind
from tests.engine.jobs import Run, check_saved, make_job, make_samples, make_task_of, run
from tests.engine.test_fast import enabled  # noqa: F401 - a fixture
from tests.engine.test_gradients import errors, make_inputs, plain
from tests.programs import ROOT

PAGE = ROOT / "docs/architectures.md"
TABLE = "| architecture | type | task | `ftcluster train` | `ftcluster run --fast` | notice |\n"
END_OF_TABLE = "<!-- end -->\n"
RENEW = bool(os.environ.get("FTCLUSTER_RENEW_ARCHITECTURES"))
SIZE = Size(width=64, heads=4, layers=2, window=8)
KINDS = kinds(SIZE)
WITH_DROPOUT = kinds(Size(width=64, heads=4, layers=2, window=8, dropout=0.1))
LENGTH = 24  # tokens; three times the attention window
END = 3  # T5 needs an end-of-text token
# arguments with which a model computes its own loss
LABELS = {
    "text-classification": {"labels": "labels"},
    "question-answering": {"start_positions": "start", "end_positions": "end"},
    "causal-lm": {"labels": "tokens"},
}
WORST, MEDIAN = 1e-4, 1e-5  # relative errors in fp32


def rows_of(page: str) -> dict[str, str]:
    """Return the rows of the table by architecture type."""
    rows = page.partition(TABLE)[2].partition(END_OF_TABLE)[0].splitlines()[1:]
    return {row.split("|")[2].strip(" `"): row for row in rows if row}


def renew(name: str, row: str) -> None:
    """Write a row of the table."""
    page = PAGE.read_text(encoding="utf-8")
    rows = {**rows_of(page), name: row}
    table = [row for other in KINDS for row in [rows.get(other)] if row]
    line = "|" + "---|" * TABLE.count(" | ") + "---|\n"
    written = TABLE + line + "".join(f"{row}\n" for row in table) + END_OF_TABLE
    PAGE.write_text(page.partition(TABLE)[0] + written, "utf-8")


def gradient_errors(name: str, kind: Kind, folder: Path) -> list[float]:
    """Return each parameter's gradient error in fp32: our kernels against plain transformers."""
    task = make_task_of(make_job(folder, kind.task))
    batch = make_inputs(kind, "right", 1, LENGTH)
    model = make_kind(name, kind)
    exact = plain(copy.deepcopy(model), task, batch, bf16=False)
    with patch_model(model, task, True, Optimizations(), ProgressLog()):
        found = plain(model.train(), task, batch, bf16=False)
    assert found.keys() == exact.keys()
    return list(errors([found], [exact]).values())


def training(name: str, kind: Kind, folder: Path, world: World) -> Run:
    """Train on the same samples repeatedly in bf16."""
    samples = make_samples(kind.task, 8)
    for sample in samples:
        sample["input_ids"][-1] = END
    job = make_job(folder, kind.task, "bf16", max_steps=12, learning_rate=3e-3)
    return run(job, make_kind(name, kind), samples, world)


def kernels_of_script(name: str, kind: Kind) -> list[str]:
    """Return the kernels of a step without our loop, under autocast."""
    model = make_kind(name, kind)
    inputs, targets = make_inputs(kind, "right", 1, LENGTH)
    labels = {name: targets[target] for name, target in LABELS[kind.task].items()}
    with torch.autocast("cpu", torch.bfloat16):
        loss = call_model(model, {**inputs, **labels}).loss
    return fast.kernels_in_use(loss, model)


@pytest.mark.parametrize("name", KINDS)
def test_an_architecture(
    tmp_path: Path,
    world: World,
    name: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = KINDS[name]
    found = gradient_errors(name, kind, tmp_path / "gradients")
    assert max(found) < WORST
    assert statistics.median(found) < MEDIAN

    done = training(name, WITH_DROPOUT[name], tmp_path / "run", world)
    assert sum(done.losses[-3:]) < 0.9 * sum(done.losses[:3])
    (kernels,) = done.of("kernels")
    said = "; ".join(event["message"] for event in done.of("notice"))
    check_saved(tmp_path / "run", kind.task, done.model)

    # the table applies to packages with the C loops; test_simd reports if they are missing
    if not simd.is_available():
        return
    request.getfixturevalue("enabled")
    monkeypatch.setattr(script_functions, "MANY_CLASSES", 100)
    of_script = kernels_of_script(name, WITH_DROPOUT[name])
    row = (
        f"| {kind.title} | `{name}` | {kind.task} | {', '.join(kernels['used'])} | "
        f"{', '.join(of_script) or '-'} | {said} |"
    )
    if RENEW:
        renew(name, row)
    assert rows_of(PAGE.read_text(encoding="utf-8"))[name] == row


def test_the_page_has_no_other_architectures() -> None:
    assert rows_of(PAGE.read_text(encoding="utf-8")).keys() == KINDS.keys()
