"""Distillation of a classifier: the loss of Hinton et al. equals torch's functions."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ftcluster_common.protocol.job import EVALUATE, Job
from ftcluster_train.engine.models import call_model
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.errors import TrainError
from tests.engine.jobs import result_of
from tests.engine.models import make_model, make_tokenizer
from tests.engine.runs import Row, classes, make_whole_job, write_data, write_model

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "text-distillation"
NAMES = ["bad", "good", "so so"]


def write_teacher(folder: Path, **changes: Any) -> str:
    model = make_model("bert")
    nn.init.normal_(model.classifier.weight)  # makes the teacher confident about some texts
    names = dict(enumerate(NAMES))
    settings = {"id2label": names, "label2id": {name: n for n, name in names.items()}, **changes}
    for name, value in settings.items():
        setattr(model.config, name, value)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return str(folder)


def rows_of(count: int, seed: int, every: int = 1) -> list[Row]:
    """Return rows of which every `each`th row has a label."""
    return [
        {"text": row["text"], "label": NAMES[row["label"]] if number % every == 0 else None}
        for number, row in enumerate(classes(count, seed))
    ]


def job_of(folder: Path, rows: list[Row], options: Any = None, **training: Any) -> Job:
    teacher = write_teacher(folder / "teacher")
    data = write_data(folder / "data", {"train": rows, "validation": rows_of(12, 2)})
    return make_whole_job(
        folder / "runs/one", TASK, data, write_model(folder / "model", "minilm", TASK), options,
        {"teacher": teacher}, **training,
    )  # fmt: skip


@pytest.mark.parametrize(("alpha", "temperature"), [(0.5, 2.0), (1.0, 4.0), (0.25, 1.0)])
def test_the_loss_is_torchs_kl_divergence_and_cross_entropy(
    tmp_path: Path, alpha: float, temperature: float
) -> None:
    """Compare loss and gradients; half of the rows have no label."""
    rows = rows_of(8, 1, every=2)
    job = job_of(tmp_path, rows, {"alpha": alpha, "temperature": temperature})
    inputs = prepare(job)
    wanted = "4 of 8 rows have no label, and are trained on the teacher's outputs alone"
    assert wanted in inputs.notices[0]
    task, model, samples = load(job, inputs)
    train = samples["train"]
    assert task.reference_model is not None
    task.set_reference(train, task.predict(task.reference_model, list(train), False))
    student = copy.deepcopy(model)
    batch = task.collate(list(train))
    loss = task.loss(call_model(model, batch.inputs), batch.targets) / len(rows)
    loss.backward()

    teacher = AutoModelForSequenceClassification.from_pretrained(tmp_path / "teacher").eval()
    tokens = make_tokenizer()([row["text"] for row in rows], padding=True, return_tensors="pt")
    mine, other = student(**tokens).logits, teacher(**tokens).logits.detach()
    soft = nn.KLDivLoss(reduction="batchmean")(
        functional.log_softmax(mine / temperature, -1), functional.softmax(other / temperature, -1)
    )
    labels = torch.tensor([NAMES.index(row["label"]) if row["label"] else -100 for row in rows])
    hard = nn.CrossEntropyLoss(reduction="sum")(mine, labels) / len(rows)
    expected = alpha * temperature**2 * soft + (1 - alpha) * hard
    expected.backward()
    # a difference of two rounded logarithms, times the square of the temperature
    rounding = 4 * torch.finfo(torch.float32).eps * temperature**2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=rounding)
    for (name, p), theirs in zip(model.named_parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(p.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_student_learns_from_its_teacher_alone(tmp_path: Path) -> None:
    """A student without labels becomes a classifier with the teacher's classes."""
    rows = [{"text": row["text"]} for row in classes(120, 1)]
    job = job_of(
        tmp_path, rows, {"alpha": 1.0}, batch_size=24, max_steps=60, learning_rate=5e-3,
        eval_strategy="steps", eval_steps=60,
    )  # fmt: skip
    data = write_data(tmp_path / "texts", {"train": rows, "validation": rows[:20]})
    found = result_of(replace(job, recipe=replace(job.recipe, data=data)))
    assert list(found["metrics"]) == ["agreement", "loss"]
    assert found["metrics"]["agreement"] >= 0.8
    assert found["classes"] == {}
    folder = Path(found["model"])
    document = json.loads((folder / "ftcluster.json").read_text())
    assert (document["recipe"], document["task"]) == ("classify", "text-classification")
    assert document["options"]["text_columns"] == ["text"]
    assert AutoModelForSequenceClassification.from_pretrained(folder).config.id2label == dict(
        enumerate(NAMES)
    )

    used = make_whole_job(
        tmp_path / "runs/two", "text-classification",
        write_data(tmp_path / "new", {"validation": rows_of(30, 3)}), str(folder),
    )  # fmt: skip
    measured = result_of(replace(used, purpose=EVALUATE))["metrics"]
    student = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = [row["text"] for row in rows_of(30, 3)]
    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        chosen = student(**tokens).logits.argmax(-1).tolist()
    right = [NAMES[n] == row["label"] for n, row in zip(chosen, rows_of(30, 3), strict=True)]
    assert measured["accuracy"] == pytest.approx(sum(right) / 30)


def test_another_teacher_says_something_else(tmp_path: Path) -> None:
    """Logits are stored under the hash of the teacher's weights, for restarts after a failure."""
    job = job_of(tmp_path, rows_of(8, 1), batch_size=8, max_steps=1)
    result_of(job)
    kept = sorted(path.name for path in job.run_dir.glob("reference-*.json"))
    other = AutoModelForSequenceClassification.from_pretrained(tmp_path / "teacher")
    with torch.no_grad():
        other.classifier.weight.mul_(2)
    other.save_pretrained(tmp_path / "teacher")
    result_of(replace(job, run_dir=tmp_path / "runs/two"))
    again = sorted(path.name for path in (tmp_path / "runs/two").glob("reference-*.json"))
    assert len(kept) == len(again) == 2
    assert not {*kept} & {*again}


@pytest.mark.parametrize(
    ("changes", "rows", "said"),
    [
        (
            {},
            [{"text": "w5 w6", "label": "fine"}],
            "column label: the data have the classes fine, and the ",
        ),
        (
            {},
            [{"text": "w5 w6", "label": 7}],
            "column label: the data have the classes 7, and the teacher",
        ),
        (
            {"problem_type": "multi_label_classification"},
            [],
            r"3 outputs \(problem type multi_label",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: Any, rows: list[Row], said: str) -> None:
    job = job_of(tmp_path, rows or rows_of(4, 1))
    write_teacher(tmp_path / "teacher", **changes)
    with pytest.raises(TrainError, match=said):
        prepare(job)


def test_a_teacher_that_reads_other_tokens(tmp_path: Path) -> None:
    job = job_of(tmp_path, rows_of(4, 1))
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(tmp_path / "teacher")
    with pytest.raises(TrainError, match="has another tokenizer than"):
        prepare(job)


def test_numbers_are_those_of_the_teachers_classes(tmp_path: Path) -> None:
    rows = [{**row, "label": NAMES.index(row["label"])} for row in rows_of(6, 1)]
    assert (
        "train: labels are the numbers of the teacher's classes: 0 is bad, 1 is good, 2 is so so"
        in prepare(job_of(tmp_path, rows)).notices
    )
