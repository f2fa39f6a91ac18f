"""Training on pairs of texts gives a model that sentence-transformers loads and evaluates."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

from ftcluster_common.models.sentence_modules import SentenceModules, module_files, read_modules
from ftcluster_common.protocol.job import EVALUATE, PREDICT, Job
from ftcluster_train.engine import rank
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.embed.corpus_search import BestDocuments, search_metrics
from ftcluster_train.errors import TrainError
from tests.engine.jobs import result_of, run_rank
from tests.engine.runs import WORDS, Row, make_whole_job, write_data, write_model

pytestmark = pytest.mark.usefixtures("one_world")
TASK = "sentence-similarity"


def pairs(count: int, seed: int) -> list[Row]:
    """Return pairs: a query is a word, and its text contains the next word among other words."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        word = draw.randrange(0, 40, 2)
        others = draw.sample(WORDS[40:], 3)
        rows.append({"query": WORDS[word], "positive": " ".join([WORDS[word + 1], *others])})
    return rows


def test_a_trained_model_finds_its_texts(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", {"train": pairs(400, 1), "validation": pairs(12, 2)})
    model = write_model(tmp_path / "model", "bert", TASK)
    job = make_whole_job(
        tmp_path / "runs/one", TASK, data, model, batch_size=32, num_train_epochs=2.0,
        eval_strategy="epoch", eval_on_start=True, learning_rate=5e-3, logging_steps=5,
        save_strategy="epoch", gradient_accumulation_steps=2,
    )  # fmt: skip
    events = run_rank(job)
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < losses[0] / 2
    metrics = [event["metrics"] for event in events if event["event"] == "evaluation"]
    assert list(metrics[0]) == [
        "ndcg_at_10", "mrr_at_10", "accuracy_at_1", "recall_at_10", "recall_at_100"
    ]  # fmt: skip
    assert metrics[-1]["mrr_at_10"] > 0.9 > 2 * metrics[0]["mrr_at_10"]

    saved = Path(events[-1]["model"])
    for folder in (saved, job.run_dir / "checkpoints/checkpoint-13"):
        assert read_modules(folder) == SentenceModules("mean", normalize=True)
        length = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
        assert length == 24
    changed = replace(job.recipe, model=str(saved))
    again = replace(job, run_dir=tmp_path / "runs/two", recipe=changed, purpose=EVALUATE)
    again.run_dir.mkdir()
    assert result_of(again)["metrics"] == pytest.approx(metrics[-1], abs=1e-6)

    again = replace(again, run_dir=tmp_path / "runs/three", purpose=PREDICT)
    again.run_dir.mkdir()
    rows = [{"query": "w7 w8"}, {"query": "w5"}, {"query": "w7 w8"}]
    there = write_data(tmp_path / "new", {"test": rows})
    again = replace(again, recipe=replace(changed, data=there))
    [file] = Path(result_of(again)["predictions"]).iterdir()
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [{"query": row["query"]} for row in found] == rows
    tokens = AutoTokenizer.from_pretrained(saved)(
        ["w7 w8", "w5"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(saved).eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    wanted = functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    embeddings = torch.tensor([row["prediction"] for row in found])
    assert torch.allclose(embeddings, wanted[[0, 1, 0]], atol=1e-5)


def test_metrics_are_those_of_sentence_transformers() -> None:
    """The expected metrics come from record_sentence_transformers.py."""
    recorded = json.loads(Path(__file__).with_name("sentence_transformers.json").read_text())
    queries, documents = (torch.tensor(recorded["searched"][n]) for n in ("queries", "documents"))
    relevant: list[list[int]] = [[] for _ in queries]
    for query, document in recorded["mined"]["pairs"]:
        relevant[query].append(len(queries) + document)
    about = {
        "queries": list(range(len(queries))),
        "same": [-1] * len(queries),
        "relevant": relevant,
    }
    first, second = (functional.normalize(vectors, dim=-1) for vectors in (queries, documents))
    best = BestDocuments(len(queries))
    numbers = torch.arange(len(queries), len(queries) + len(documents))
    for some in torch.arange(len(documents)).split(7):
        best.add(0, first @ second[some].T, numbers[some])
    found = search_metrics(best.documents(), about)
    names = {"ndcg@k": "ndcg_at_10", "mrr@k": "mrr_at_10", "recall@k": "recall_at_10"}
    for theirs, ours in names.items():
        assert found[ours] == pytest.approx(recorded["searched"]["metrics"][theirs]["10"])
    accuracy = recorded["searched"]["metrics"]["accuracy@k"]["1"]
    assert 0 < accuracy < 1
    assert found["accuracy_at_1"] == pytest.approx(accuracy)


def job_of(folder: Path, rows: list[Row], **changes: Any) -> Job:
    model = write_model(folder / "model", "bert", TASK)
    data = write_data(folder / "data", {"train": rows, "validation": pairs(4, 2)})
    return make_whole_job(folder / "runs/one", TASK, data, model, **changes)


def test_samples_and_what_is_cut(tmp_path: Path) -> None:
    rows = [
        {"query": "w5", "positive": "w6 w7", "negative": "w8", "negatives": ["w9", "w6 w7"]},
        {"query": "w5", "positive": "w9", "negative": " ".join(WORDS[:30]), "negatives": None},
    ]
    inputs = prepare(job_of(tmp_path, rows))
    assert inputs.notices == ["train: 1 texts were truncated to 24 tokens"]
    first, second = Samples(Path(inputs.samples) / "train")
    assert first["lengths"] == [3, 4, 3, 3, 4]
    assert second["lengths"] == [3, 3, 24]
    assert first["input_ids"][:7] == [2, 5, 3, 2, 6, 7, 3]
    query, positive, negative, other, same = first["texts"]
    assert (same, second["texts"][:2]) == (positive, [query, other])
    assert len({query, positive, negative, other, second["texts"][2]}) == 5


def test_equal_texts_of_a_set_are_searched_once(tmp_path: Path) -> None:
    rows = [
        {"query": "w5", "positive": "w6", "negative": "w5"},
        {"query": "w7", "positive": "w6", "negative": ""},
        {"query": "w5", "positive": "w8", "negative": "w9"},
    ]
    job = replace(job_of(tmp_path, rows), purpose=EVALUATE)
    job = replace(job, recipe=replace(job.recipe, data=f"{job.recipe.data}/train.jsonl"))
    samples = Samples(Path(prepare(job).samples) / "validation")
    assert [sample["input_ids"][1] for sample in samples] == [5, 6, 7, 8, 9]
    about = samples.about
    assert about["same"] == [0, -1]  # the query is one of the documents
    assert (about["queries"], about["relevant"]) == ([0, 2], [[1, 3], [1]])
    assert about["only_queries"] == [2]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"query": "w5", "positive": " "}, "train.jsonl:3: column positive is empty"),
        ({"query": 5, "positive": "w5"}, "train.jsonl:3: column query must be a string, got 5"),
        ({"query": "w5"}, "train.jsonl:3: no column positive; found query"),
    ],
)
def test_rows_that_are_refused(tmp_path: Path, row: Row, said: str) -> None:
    with pytest.raises(TrainError) as caught:
        prepare(job_of(tmp_path, [*pairs(2, 1), row]))
    assert caught.value.message == said


def test_pooling_is_that_of_the_models_folder(tmp_path: Path) -> None:
    job = job_of(tmp_path, pairs(40, 1), max_steps=1)
    modules = SentenceModules("cls", False, {"query": "query: "})
    for name, document in module_files(modules, 32, 24, {}).items():
        path = tmp_path / "model" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))
    write_inputs(job.run_dir, prepare(job))
    task, model, _ = rank.load(job, read_inputs(job.run_dir))
    task.check_model(model)
    named = replace(modules, prompts={"query": "query: ", "document": ""})
    assert task.modules == named  # type: ignore[attr-defined]
    path.write_text(json.dumps({"pooling_mode": ["mean", "max"]}))
    with pytest.raises(TrainError) as caught:
        prepare(job)
    assert caught.value.message.startswith("the model's pooling is mean + max")


def test_prompts_are_those_of_the_models_folder(tmp_path: Path) -> None:
    """Compare the prompts with those that sentence-transformers' three encode methods use."""
    job = job_of(tmp_path, [{"query": "w20", "positive": "w21"}] * 3)
    model = Path(job.recipe.model)
    modules = SentenceModules("mean", True, {"query": "w5 ", "any": "w7 "}, "any")
    for name, document in module_files(modules, 32, 24, {}).items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(json.dumps(document))

    def read(job: Job) -> tuple[list[str], list[str]]:
        inputs = prepare(job)
        texts = [one["parts"][0][0] for one in inputs.report["samples"][0]]
        return texts, [one for one in inputs.notices if one.startswith("prompts")]

    assert read(job) == (
        ["[CLS] w5 w20 [SEP]", "[CLS] w7 w21 [SEP]"],
        ["prompts: 'w5 ' before each query, 'w7 ' before each text"],
    )
    data = f"{job.recipe.data}/train.jsonl"
    alone = replace(job, purpose=PREDICT, recipe=replace(job.recipe, data=data))
    assert read(alone)[0] == ["[CLS] w7 w20 [SEP]"]
    options = replace(job.recipe.options, query_prompt="", text_prompt="w9 ")
    own = replace(job, recipe=replace(job.recipe, options=options))
    assert read(own)[0] == ["[CLS] w20 [SEP]", "[CLS] w9 w21 [SEP]"]
    write_inputs(own.run_dir, prepare(own))
    task, loaded, _ = rank.load(own, read_inputs(own.run_dir))
    task.check_model(loaded)
    assert task.modules.search_prompts == ("", "w9 ")  # type: ignore[attr-defined]
