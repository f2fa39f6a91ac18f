"""A teacher's scores of a query's texts: the losses equal those of sentence-transformers."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcluster_common.protocol.job import Job
from ftcluster_common.user_code import load_task
from ftcluster_train.comm.world import World
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.rank import load
from ftcluster_train.patching.patch_model import Optimizations, patch_model
from tests.engine.beside import COMPARED
from tests.engine.runs import Row, make_whole_job, triplets, write_data
from tests.engine.test_in_batch_negatives import loss_of
from tests.engine.test_multi_vector_encoding import PROMPTS, write_encoder
from tests.engine.test_own_folders import as_own, code_in
from tests.programs import ROOT

pytestmark = pytest.mark.usefixtures("one_world")
FOLDER = ROOT / "tests/engine/own_tasks/colbert_distillation"


@pytest.fixture(autouse=True)
def _sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(COMPARED)
    yield
    load_task(None, Path())


def scored(count: int, seed: int) -> list[Row]:
    """Write triplets with a teacher's scores, of the text of the query first."""
    draw = random.Random(seed)
    return [
        {**row, "scores": [draw.uniform(low, low + 3) for low in (4, 0, -2)]}
        for row in triplets(count, seed)
    ]


def teacher_job(folder: Path, rows: Sequence[Row], temperature: float) -> Job:
    before = write_encoder(folder, {"strategy": "fixed", "length": 8, "attend": False})
    data = write_data(folder / "data", {"train": rows, "validation": rows})
    job = make_whole_job(
        folder / "runs/plain", "multi-vector-encoding", data, before, {"dimension": None}
    )
    own = as_own(job, code_in(FOLDER))
    options = replace(own.recipe.options, temperature=temperature)
    return replace(own, recipe=replace(own.recipe, options=options))


def loss_of_sentence_transformers(
    folder: str, rows: Sequence[Row], temperature: float
) -> tuple[Any, torch.Tensor]:
    """Return the model with the gradients of the loss over all rows, and the loss."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.multi_vector_encoder.losses import MultiVectorDistillKLDivLoss

    model = MultiVectorEncoder(folder, device="cpu").eval()
    columns = [[row["query"] for row in rows], [row["positive"] for row in rows]]
    columns += [[row["negatives"][n] for row in rows] for n in range(2)]
    features = []
    for number, column in enumerate(columns):
        task = "document" if number else "query"
        features.append({**model.preprocess(column, prompt=PROMPTS[task], task=task), "task": task})
    labels = torch.tensor([row["scores"] for row in rows])
    loss = MultiVectorDistillKLDivLoss(model, temperature=temperature)(features, labels)
    loss.backward()
    return model, loss.detach()


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_task_in_a_folder_has_the_loss_of_sentence_transformers(
    tmp_path: Path, world: World, temperature: float, parts: int
) -> None:
    rows = scored(8, 1)
    job = teacher_job(tmp_path, rows, temperature)
    write_inputs(job.run_dir, prepare(job))
    inputs = read_inputs(job.run_dir)
    task, model, _ = load(job, inputs)
    task.check_model(model)
    samples = list(Samples(Path(inputs.samples) / "train"))
    batches = [samples] if parts == 1 else [samples[:3], samples[3:]]
    kernels = patch_model(model, task, True, Optimizations(), ProgressLog())
    loss, _ = loss_of(task, model.eval(), batches, world, kernels)
    theirs, wanted = loss_of_sentence_transformers(job.recipe.model, rows, temperature)
    assert loss / len(rows) == pytest.approx(wanted.item(), rel=1e-5)
    gradients = {name.partition("model.")[2]: p.grad for name, p in theirs.named_parameters()}
    gradients["projections.0.linear.weight"] = theirs[1].linear.weight.grad
    compared = 0
    for name, p in model.named_parameters():
        if p.grad is not None and gradients.get(name) is not None:
            difference = (p.grad / len(rows) - gradients[name]).abs().max()
            assert difference < 1e-5 + 1e-3 * gradients[name].abs().max(), name
            compared += 1
    assert compared > 10
    assert model.projections[0].linear.weight.grad.norm() > 1e-3
