"""OnlineContrastiveLoss equals that of sentence-transformers, also for ranks without hard pairs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ftcluster_common.protocol.job import Job
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.embed.in_batch_negatives import BatchTexts
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.errors import TrainError
from tests.engine.beside import COMPARED
from tests.engine.jobs import run_rank
from tests.engine.models import make_tokenizer
from tests.engine.runs import WORDS, Row, make_whole_job, write_data, write_model

pytestmark = pytest.mark.usefixtures("one_world")
LOSS = "online_contrastive"


@pytest.fixture(autouse=True)
def _sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(COMPARED)


def duplicates(count: int, seed: int) -> list[Row]:
    """Write pairs of words, which match if both are among the first words or both are not."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 40, (count, 2), generator=draw).tolist()
    return [
        {"sentence1": WORDS[a], "sentence2": WORDS[b], "label": int((a < 20) == (b < 20))}
        for a, b in numbers
    ]


def job_of(folder: Path, **training: Any) -> Job:
    data = write_data(
        folder / "data", {"train": duplicates(80, 1), "validation": duplicates(40, 2)}
    )
    model = write_model(folder / "model", "bert", "sentence-similarity")
    return make_whole_job(
        folder / "runs/plain", "sentence-similarity", data, model, {"loss": LOSS},
        **training,
    )  # fmt: skip


@pytest.mark.parametrize(
    "labels",
    [[1.0, 0, 1, 0, 0, 1], [1.0] * 6, [0.0] * 6, [1.0, 0, 0, 0, 0, 0]],
    ids=["both", "matching", "apart", "one"],
)
def test_loss_and_gradients_are_those_of_sentence_transformers(
    tmp_path: Path, labels: list[float]
) -> None:
    from sentence_transformers.sentence_transformer.losses import OnlineContrastiveLoss

    job = job_of(tmp_path)
    task: Any = make_task(job.recipe, make_tokenizer())
    torch.manual_seed(8)
    columns = [torch.randn(6, 7, requires_grad=True) for _ in range(2)]
    target = torch.tensor(labels)
    loss = OnlineContrastiveLoss(torch.nn.Identity())
    wanted = loss.compute_loss_from_embeddings(columns, target)
    expected = torch.autograd.grad(wanted, columns)
    vectors = functional.normalize(torch.stack(columns, dim=1).flatten(0, 1), dim=-1)
    whole = BatchTexts(
        torch.arange(12), torch.tensor([0, 1] * 6), slice(0, 6), [12], target.double()
    )
    task.width = 7
    parts = [
        task.batch_loss(vectors, whole._replace(rows=rows))
        for rows in (slice(0, 2), slice(2, 2), slice(2, 6))  # of three ranks, one without a row
    ]
    total = torch.stack(parts).sum() / 6
    assert total.item() == pytest.approx(wanted.item(), rel=1e-5)
    for found, gradient in zip(torch.autograd.grad(total, columns), expected, strict=True):
        assert torch.allclose(found, gradient, rtol=1e-4, atol=1e-6)


def test_matching_pairs_become_similar(tmp_path: Path) -> None:
    job = job_of(
        tmp_path, batch_size=20, max_steps=80, learning_rate=5e-3, eval_strategy="epoch",
        eval_on_start=True,
    )  # fmt: skip
    events = run_rank(job)
    first, *_, last = (one["metrics"] for one in events if one["event"] == "evaluation")
    assert last["spearman"] > first["spearman"] + 0.2


def test_other_scores_are_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    rows = [{**row, "label": 0.5} for row in duplicates(4, 1)]
    data = write_data(tmp_path / "other", {"train": rows, "validation": rows})
    with pytest.raises(TrainError, match=r"train.jsonl:1: column label is 0\.5, but loss=online"):
        prepare(replace(job, recipe=replace(job.recipe, data=data)))
