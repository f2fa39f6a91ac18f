"""Each data format gives the same samples; a trained model evaluates and predicts them."""

import csv
import json
import os
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
import torch
from pyarrow import ipc, parquet
from transformers import AutoConfig

from ftcluster_common.models.trained_model import read_trained
from ftcluster_common.protocol.job import Job, Purpose
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_train.comm.world import World
from ftcluster_train.engine import rank
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.data.sources import ArrowRows
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.errors import TrainError
from tests.engine.forks import start
from tests.engine.runs import Row, classes, make_whole_job, questions, write_model
from tests.programs import free_ports

NAMES = ("bad", "fair", "good")
TASK = "text-classification"


def words(count: int, seed: int) -> list[Row]:
    """Write rows with columns of other names, and words as classes."""
    rows = classes(count, seed)
    return [{"id": i, "Review": row["text"], "Sentiment": NAMES[row["label"]]}
            for i, row in enumerate(rows)]  # fmt: skip


def write(path: Path, rows: Sequence[Row]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            mark = "," if path.suffix == ".csv" else "\t"
            writer = csv.DictWriter(file, list(rows[0]), delimiter=mark)
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def job_of(
    folder: Path, data: str, model: str = "", task: str = TASK, purpose: Purpose = "train",
    **changes: Any,
) -> Job:  # fmt: skip
    model = model or write_model(folder / "model", "bert", task)
    job = make_whole_job(folder / f"{purpose}-{Path(data).name}", task, data, model, **changes)
    options = replace(job.recipe.options, **({"text_columns": ()} if task == TASK else {}))
    return replace(job, recipe=replace(job.recipe, options=options), purpose=purpose)


def test_few_rows_of_one_large_record_batch_are_converted_at_once(tmp_path: Path) -> None:
    """Other programs write a whole table as one batch."""
    path, count, text = tmp_path / "train.arrow", 20_000, "word " * 100
    table = pyarrow.table({"text": [text] * count, "label": [1] * count})
    with pyarrow.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as out:
        out.write_table(table, max_chunksize=count)
    tracemalloc.start()
    try:
        assert sum(len(row["text"]) for row in ArrowRows((path,))) == count * len(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < count * len(text) / 4


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_each_format_gives_the_same_samples(tmp_path: Path, ending: str) -> None:
    rows = words(60, 1)
    found = []
    for name in (f"reviews.{ending}", "wanted.jsonl"):
        inputs = prepare(job_of(tmp_path, write(tmp_path / "data" / name, rows)))
        sets = [Samples(Path(inputs.samples) / split) for split in ("train", "validation")]
        assert [len(one) for one in sets] == [54, 6]
        assert sets[0].about["names"] == list(NAMES)
        assert "validation: 6 rows, 10 % of train" in inputs.notices
        assert inputs.report["columns"]["not read"] == ["id"]
        found.append([one.about["sha256"] for one in sets])
    assert found[0] == found[1]


def test_rows_of_parquet_are_checked_where_they_are_read(tmp_path: Path) -> None:
    """Parquet rows are checked on the hosts; text rows are checked on the control node."""
    rows = [dict(row) for row in questions(40, 1)]
    rows[6]["answers"] = {"text": ["nowhere"], "answer_start": [0]}
    rows[9]["context"] = None
    asked = write(tmp_path / "asked.parquet", rows)
    model = write_model(tmp_path / "model", "bert", "question-answering")
    with pytest.raises(TrainError) as caught:
        prepare(job_of(tmp_path, asked, model, "question-answering"))
    assert "asked.parquet: row 7: the answer" in caught.value.message
    assert (
        "asked.parquet: row 10: column context must be a string, got None" in caught.value.message
    )


def test_names_of_classes_in_parquet(tmp_path: Path) -> None:
    """`datasets` writes names of classes into Parquet metadata."""
    rows = datasets.Dataset.from_list(classes(60, 1))
    rows = rows.cast_column("label", datasets.ClassLabel(names=["worse", "same", "better"]))
    rows.to_parquet(str(tmp_path / "reviews.parquet"))
    inputs = prepare(job_of(tmp_path, str(tmp_path / "reviews.parquet")))
    assert Samples(Path(inputs.samples) / "train").about["names"] == ["worse", "same", "better"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["same", "same", "better"], "classes of column label have the same name: same, same"),
        (["worse", "better"], "has the class 2, and the data name 2: worse, better"),
    ],
)
def test_names_that_are_not_those_of_the_classes(
    tmp_path: Path, names: list[str], said: str
) -> None:
    """Reject invalid metadata of a Parquet file."""
    path = tmp_path / "reviews.parquet"
    table = pyarrow.Table.from_pylist(classes(60, 1))
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    parquet.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(TrainError) as caught:
        prepare(job_of(tmp_path, str(path)))
    assert said in caught.value.message


def test_texts_and_answers_of_one_file(tmp_path: Path) -> None:
    asked = write(tmp_path / "asked.parquet", questions(40, 1))
    model = write_model(tmp_path / "model", "bert", "question-answering")
    inputs = prepare(job_of(tmp_path, asked, model, "question-answering"))
    assert "validation: 4 rows, 10 % of train" in inputs.notices
    (tmp_path / "book.txt").write_text(" ".join(row["Review"] for row in words(60, 1)))
    model = write_model(tmp_path / "decoder", "gpt2", "causal-lm")
    inputs = prepare(job_of(tmp_path, str(tmp_path / "book.txt"), model, "causal-lm"))
    assert len(Samples(Path(inputs.samples) / "validation")) > 0
    evaluated = job_of(tmp_path, str(tmp_path / "book.txt"), model, "causal-lm", "evaluate")
    assert [path.name for path in Path(prepare(evaluated).samples).iterdir() if path.is_dir()] == [
        "validation"
    ]


def _rank(number: int, jobs: Sequence[Job], ports: Sequence[int], size: int) -> None:
    torch.set_num_threads(1)
    for job, port in zip(jobs, ports, strict=True):
        os.environ |= {"PMI_RANK": str(number), "PMI_SIZE": str(size), "MASTER_PORT": str(port)}
        rank.run(job)


def on_ranks(jobs: Sequence[Job], size: int) -> list[dict[str, Any]]:
    """Return the result of each job."""
    for job in jobs:
        write_inputs(job.run_dir, prepare(job))
    start(_rank, size, jobs, free_ports(len(jobs)), size)
    events = [json.loads(line) for job in jobs
              for line in (job.run_dir / "events.jsonl").read_text().splitlines()]  # fmt: skip
    return [event for event in events if event["event"] == "result"]


def test_a_trained_model_is_evaluated_and_predicts_on_two_ranks(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "reviews.csv", words(61, 1))
    trained = job_of(tmp_path, data, max_steps=12)
    asked = {"version_2_with_negative": True}
    answering = write_model(tmp_path / "answering", "bert", "question-answering")
    reader = job_of(
        tmp_path, write(tmp_path / "asked.jsonl", questions(30, 1)), answering,
        "question-answering", options=asked, max_steps=2,
    )  # fmt: skip
    with monkeypatch.context() as alone:
        alone.setattr(rank, "join_world", lambda: world)
        alone.setattr(rank, "leave_world", lambda: None)
        for job in (trained, reader):
            write_inputs(job.run_dir, prepare(job))
            rank.run(job)
    model = trained.run_dir / "model"
    remembered = read_trained(model)["options"]
    assert (remembered["text_columns"], remembered["label_column"]) == (["Review"], "Sentiment")
    config = AutoConfig.from_pretrained(model)
    assert config.id2label == dict(enumerate(NAMES))
    assert config.label2id == {name: number for number, name in enumerate(NAMES)}

    rows = words(33, 2)
    labelled = write(tmp_path / "labelled.jsonl", rows)
    unlabelled = write(tmp_path / "new.csv", [{"id": r["id"], "Review": r["Review"]} for r in rows])
    texts = [{k: v for k, v in row.items() if k != "answers"} for row in questions(21, 2)]
    jobs = [
        job_of(tmp_path, labelled, str(model), purpose="evaluate"),
        job_of(tmp_path, unlabelled, str(model), purpose="predict"),
        job_of(
            tmp_path, write(tmp_path / "texts.json", texts), str(reader.run_dir / "model"),
            "question-answering", "predict",
        ),
    ]  # fmt: skip
    measured, predicted, answered = on_ranks(jobs, 2)
    assert measured["world_size"] == 2
    lines = (Path(predicted["predictions"]) / "predictions.jsonl").read_text().splitlines()
    answers = [json.loads(line) for line in lines]
    assert [one["Review"] for one in answers] == [row["Review"] for row in rows]
    right = [one["prediction"] == row["Sentiment"] for one, row in zip(answers, rows, strict=True)]
    assert measured["metrics"]["accuracy"] == pytest.approx(sum(right) / len(right))
    assert all(1 / 3 <= one["probability"] <= 1 for one in answers)
    lines = (Path(answered["predictions"]) / "predictions.jsonl").read_text().splitlines()
    assert [[*json.loads(line)] for line in lines] == [["question", "context", "prediction"]] * 21


def test_classes_of_named_data_are_those_of_the_model_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, "someone/reviews", purpose="evaluate")
    config = AutoConfig.from_pretrained(job.recipe.model)
    config.id2label = dict(enumerate(NAMES))
    config.label2id = {name: number for number, name in enumerate(NAMES)}
    config.save_pretrained(job.recipe.model)
    kinds = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["good", "bad", "fair"])
    )
    rows = datasets.Dataset.from_dict({"text": ["w5", "w6", "w7"], "label": [0, 1, 2]}, kinds)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"validation": rows})
    samples = Samples(Path(prepare(job).samples) / "validation")
    assert [NAMES[sample["label"][0]] for sample in samples] == ["good", "bad", "fair"]


def test_a_model_that_is_not_trained_or_for_something_else(tmp_path: Path) -> None:
    data = write(tmp_path / "reviews.csv", words(20, 1))
    job = job_of(tmp_path, data, purpose="evaluate")
    number = replace(job.recipe, options=TextClassification(regression=True))
    with pytest.raises(TrainError, match="has 3 outputs") as caught:
        prepare(replace(job, recipe=number))
    assert caught.value.hint == "set regression=false"
    with pytest.raises(TrainError, match=r"the data have the classes .* has LABEL_0, LABEL_1"):
        prepare(job)
    unlabelled = write(tmp_path / "new.csv", [{"Review": row["Review"]} for row in words(20, 1)])
    job = job_of(tmp_path, unlabelled, purpose="predict")
    write_inputs(job.run_dir, prepare(job))
    with pytest.raises(TrainError, match="is not trained for text-classification: it has no weigh"):
        rank.load(job, read_inputs(job.run_dir))
