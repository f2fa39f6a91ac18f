"""Distillation of embeddings, compared with the losses of sentence-transformers."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import BertProcessing
from torch.nn import functional
from transformers import AutoModel, PreTrainedTokenizerFast

from ftcluster_common.models.sentence_modules import SentenceModules, module_files, read_modules
from ftcluster_common.protocol.job import PREDICT, Job
from ftcluster_common.tasks.embed import SentenceSimilarity
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.rank import load
from ftcluster_train.engine.tasks.embed.embedding_distillation import (
    EmbeddingDistillationTask,
    principal_components,
)
from ftcluster_train.errors import TrainError
from tests.engine.jobs import make_job, result_of, run_rank
from tests.engine.models import SPECIAL, VOCABULARY, make_tokenizer
from tests.engine.runs import classes, make_whole_job, write_data, write_model

pytestmark = pytest.mark.usefixtures("one_world")
RECORDED = json.loads(Path(__file__).with_name("sentence_transformers.json").read_text())
TASK = "sentence-similarity"


def write_teacher(folder: Path, kind: str, modules: SentenceModules) -> PreTrainedTokenizerFast:
    """Write a teacher whose token ids differ from the student's."""
    write_model(folder, kind, TASK)
    for name, document in module_files(modules, 32, 24, {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(document))
    words = [*SPECIAL, *(f"w{i}" for i in reversed(range(len(SPECIAL), VOCABULARY)))]
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = WhitespaceSplit()
    made.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]")
    tokenizer.save_pretrained(folder)
    return tokenizer


def job_of(folder: Path, student: str = "bert", loss: str = "mse", **training: Any) -> Job:
    texts = [{"text": row["text"], "label": "x"} for row in classes(120, 1)]
    data = write_data(folder / "data", {"train": [*texts, texts[0]], "validation": texts[:20]})
    return make_whole_job(
        folder / "runs/one", TASK, data, write_model(folder / "model", student, TASK),
        {"loss": loss}, {"teacher": str(folder / "teacher")}, **training,
    )  # fmt: skip


@pytest.mark.parametrize(("loss", "theirs"), [("mse", "mse"), ("cosine_distance", "cosine")])
def test_loss_and_gradients_are_those_of_sentence_transformers(
    tmp_path: Path, loss: Any, theirs: str
) -> None:
    recorded = RECORDED["distilled"][theirs]
    recipe = make_job(tmp_path, TASK).recipe
    task = EmbeddingDistillationTask(
        replace(recipe, options=SentenceSimilarity(loss=loss)), make_tokenizer()
    )
    task.modules = SentenceModules("mean", normalize=False)
    student = torch.tensor(RECORDED["columns"][0], requires_grad=True)
    outputs = SimpleNamespace(last_hidden_state=student.unsqueeze(1))
    count = len(student)
    teacher = torch.tensor(RECORDED["columns"][1])
    found = task.loss(outputs, {"tokens": torch.ones(count, 1), "teacher": teacher}) / count
    assert found.item() == pytest.approx(recorded["loss"], rel=1e-6)
    found.backward()
    assert torch.allclose(student.grad, torch.tensor(recorded["gradient"]), atol=1e-7)


def test_a_student_learns_its_teachers_embeddings(tmp_path: Path) -> None:
    """The student has another tokenizer, and is used like any embedding model."""
    modules = SentenceModules("cls", True, {"": "w9 "}, "")
    tokenizer = write_teacher(tmp_path / "teacher", "bert", modules)
    job = job_of(
        tmp_path, batch_size=30, max_steps=60, learning_rate=5e-3, eval_on_start=True,
        eval_strategy="steps", eval_steps=60,
    )  # fmt: skip
    events = run_rank(job)
    first, last = (one["metrics"] for one in events if one["event"] == "evaluation")
    assert list(last) == ["cosine", "loss"]
    assert last["loss"] < first["loss"] / 2
    folder = Path(events[-1]["model"])
    saved = read_modules(folder)
    assert saved is not None
    assert (saved.pooling, saved.normalize) == ("mean", True)
    document = json.loads((folder / "ftcluster.json").read_text())
    assert (document["recipe"], document["options"]["loss"]) == ("embed", "auto")

    task, model, samples = load(job, prepare(job))
    assert len(samples["train"]) == 120  # duplicate texts are one sample
    task.check_model(model)
    assert task.reference_model is not None
    with torch.inference_mode():
        vectors = task.predict(task.reference_model, list(samples["validation"]), False)
    task.set_reference(samples["validation"], vectors)
    batch = task.collate([samples["validation"][number] for number in range(20)])
    texts = [f"w9 {row['text']}" for row in classes(20, 1)]
    teacher = AutoModel.from_pretrained(tmp_path / "teacher").eval()
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=24, return_tensors="pt")
    with torch.no_grad():
        hidden = teacher(tokens["input_ids"], tokens["attention_mask"]).last_hidden_state
    wanted = functional.normalize(hidden[:, 0], dim=-1)
    assert torch.allclose(batch.targets["teacher"], wanted, atol=1e-5)

    recipe = replace(job.recipe, model=str(folder), teacher=None, options=SentenceSimilarity())
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=recipe, purpose=PREDICT)
    rows = [{"text": row["text"]} for row in classes(20, 1)]
    data = write_data(tmp_path / "new", {"test": rows})
    again = replace(again, recipe=replace(recipe, data=data))
    [file] = Path(result_of(again)["predictions"]).iterdir()
    mine = [json.loads(line)["prediction"] for line in file.read_text().splitlines()]
    cosines = functional.cosine_similarity(torch.tensor(mine), wanted, dim=-1)
    assert cosines.mean().item() == pytest.approx(last["cosine"], abs=1e-4)


def test_a_wider_teacher_is_reduced(tmp_path: Path) -> None:
    write_teacher(tmp_path / "teacher", "minilm", SentenceModules("mean", normalize=True))
    job = job_of(tmp_path, loss="cosine_distance", max_steps=2)
    events = run_rank(job)
    said = [one["message"] for one in events if one["event"] == "notice"]
    wanted = "have 48 elements: the target is their 32 principal components"
    assert any(wanted in one for one in said)
    kept = read_modules(Path(events[-1]["model"]))
    assert kept is not None
    assert not kept.normalize


def test_components_are_those_of_the_singular_value_decomposition() -> None:
    vectors = torch.randn(60, 12, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 13)
    found, share = principal_components(vectors, 5)
    centered = (vectors - vectors.mean(0)).double()
    _, values, rows = torch.linalg.svd(centered, full_matrices=False)
    assert torch.allclose((found.double() * rows[:5]).sum(1).abs(), torch.ones(5).double())
    assert share == pytest.approx((values[:5].square().sum() / values.square().sum()).item())
    with pytest.raises(TrainError, match="need as many texts, but the training set has 4"):
        principal_components(vectors[:4], 5)


def test_teachers_that_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "teacher", "bert", TASK)
    with pytest.raises(TrainError, match=r"has no modules\.json"):
        prepare(job_of(tmp_path))
    write_teacher(tmp_path / "teacher", "bert", SentenceModules("mean", normalize=True))
    job = job_of(tmp_path, "minilm", max_steps=1)
    with pytest.raises(TrainError, match="have 48 elements, more than the 32 of the teacher"):
        run_rank(job)
