"""Exports of annotation tools, gzip and saved data sets become the same samples as plain rows."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

from ftcluster_common.models.trained_model import read_trained
from ftcluster_common.protocol.job import Job, Purpose
from ftcluster_train.comm.world import World
from ftcluster_train.engine import rank
from ftcluster_train.engine.data.run_inputs import write_inputs
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.prepare import prepare
from tests.engine.models import CHAT, make_tokenizer
from tests.engine.runs import (
    WORDS,
    Row,
    classes,
    make_whole_job,
    preferences,
    questions,
    sets_of_classes,
    write_model,
)

CLASSIFY, NER = "text-classification", "token-classification"
ANSWER, DPO = "question-answering", "preference-tuning"
NAMES = ("bad", "fair", "good")


def named(count: int) -> list[Row]:
    return [{"text": row["text"], "label": NAMES[row["label"]]} for row in classes(count, 1)]


def entities(count: int) -> list[Row]:
    """The first half of the words are entities."""
    rows = []
    for row in classes(count, 2):
        spans, begin = [], 0
        for word in row["text"].split():
            if word in WORDS[: len(WORDS) // 2]:
                spans.append({"start": begin, "end": begin + len(word), "label": "A"})
            begin += len(word) + 1
        rows.append({"text": row["text"], "spans": spans})
    return rows


def placed(count: int) -> list[Row]:
    """Questions whose answer the context has once, as a text."""
    return [row for row in questions(count, 1) if row["answers"]["text"]]


def label_studio(rows: Sequence[Row], column: str) -> list[Row]:
    """Tasks with an annotation; every fifth task also has a cancelled one of another answer."""
    tasks = []
    for number, row in enumerate(rows):
        if column == "spans":
            result = [
                {"id": f"r{n}", "from_name": "label", "to_name": "text", "type": "labels",
                 "value": {"start": span["start"], "end": span["end"], "labels": [span["label"]],
                           "text": row["text"][span["start"] : span["end"]]}}
                for n, span in enumerate(row["spans"])
            ]  # fmt: skip
        else:
            result = [{"id": "r", "from_name": "topic", "to_name": "text", "type": "choices",
                       "value": {"choices": [row["label"]]}}]  # fmt: skip
        done = {"id": number, "was_cancelled": False, "result": result}
        undone = {"id": -number, "was_cancelled": True, "result": []}
        annotations = [done] if number % 5 else [undone, done]
        tasks.append({"id": number, "data": {"text": row["text"]}, "annotations": annotations})
    return [*tasks, {"id": 999, "data": {"text": "w5 w6"}, "annotations": []}]


def prodigy(rows: Sequence[Row], column: str) -> list[Row]:
    """Accepted rows, and one that was rejected before each tenth of them."""
    found: list[Row] = []
    for number, row in enumerate(rows):
        task = {"text": row["text"], "_input_hash": number, "_task_hash": number}
        answer = {"spans": row["spans"]} if column == "spans" else {"accept": [row["label"]]}
        if number % 10 == 0:
            found.append({**task, "_task_hash": -1 - number, "spans": [], "answer": "reject"})
        found.append({**task, **answer, "answer": "accept"})
    return found


def doccano(rows: Sequence[Row], column: str) -> list[Row]:
    if column == "label":
        return [{"id": n, "text": row["text"], "label": [row["label"]], "Comments": []}
                for n, row in enumerate(rows)]  # fmt: skip
    return [
        {"id": n, "text": row["text"], "relations": [], "Comments": [], "entities": [
            {"id": 1, "start_offset": span["start"], "end_offset": span["end"],
             "label": span["label"]} for span in row["spans"]]}
        for n, row in enumerate(rows)
    ]  # fmt: skip


def argilla(rows: Sequence[Row], column: str) -> list[Row]:
    return [
        {"id": str(n), "fields": {"text": row["text"]}, "metadata": {}, "suggestions": {},
         "responses": {column: [{"value": row[column], "user_id": "u", "status": "submitted"}]}}
        for n, row in enumerate(rows)
    ]  # fmt: skip


def write(path: Path, rows: Sequence[Row]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    text = lines if ".jsonl" in path.name else json.dumps(rows)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def job_of(folder: Path, name: str, task: str, data: str, **changes: Any) -> Job:
    model = folder / f"model-{task}"
    if not model.exists():
        write_model(model, "gpt2" if task == DPO else "bert", task, head=task == DPO)
        tokenizer = make_tokenizer()
        tokenizer.chat_template = CHAT
        tokenizer.save_pretrained(model)
    return make_whole_job(folder / name, task, data, str(model), **changes)


def digests(job: Job) -> tuple[list[str], list[str]]:
    """The digest of each set's samples, and the notices."""
    inputs = prepare(job)
    sets = [Samples(Path(inputs.samples) / split) for split in ("train", "validation")]
    return [found.about["sha256"] for found in sets], inputs.notices


@pytest.mark.parametrize("tool", [label_studio, prodigy, doccano, argilla])
@pytest.mark.parametrize(("task", "column"), [(CLASSIFY, "label"), (NER, "spans")])
def test_each_tool_gives_the_samples_of_plain_rows(
    tmp_path: Path, tool: Callable[[Sequence[Row], str], list[Row]], task: str, column: str
) -> None:
    rows = named(40) if task == CLASSIFY else entities(40)
    wanted = digests(job_of(tmp_path, "plain", task, write(tmp_path / "plain.jsonl", rows)))
    ending = "json" if tool is label_studio else "jsonl"
    data = write(tmp_path / f"export.{ending}", tool(rows, column))
    assert digests(job_of(tmp_path, "export", task, data))[0] == wanted[0]


def test_preferences_of_openai_are_messages(tmp_path: Path) -> None:
    rows = preferences(20, 1)
    pairs = [
        {"input": {"messages": [{"role": "user", "content": row["prompt"]}]},
         "preferred_output": [{"role": "assistant", "content": row["chosen"]}],
         "non_preferred_output": [{"role": "assistant", "content": row["rejected"]}]}
        for row in rows
    ]  # fmt: skip
    messages = [
        {"prompt": pair["input"]["messages"], "chosen": pair["preferred_output"],
         "rejected": pair["non_preferred_output"]}
        for pair in pairs
    ]  # fmt: skip
    found = [
        digests(job_of(tmp_path, name, DPO, write(tmp_path / f"{name}.jsonl", some)))[0]
        for name, some in (("pairs", pairs), ("messages", messages))
    ]
    assert found[0] == found[1]


def test_answers_are_searched_and_rows_without_a_place_are_skipped(tmp_path: Path) -> None:
    rows = placed(40)
    texts = [{**row, "answers": row["answers"]["text"][0]} for row in rows]
    wanted = digests(job_of(tmp_path, "plain", ANSWER, write(tmp_path / "plain.jsonl", rows)))
    found = digests(job_of(tmp_path, "texts", ANSWER, write(tmp_path / "texts.jsonl", texts)))
    assert found[0] == wanted[0]
    bad = [
        {**texts[0], "answers": "elsewhere"},
        {**texts[1], "context": "w5 w6 w5", "answers": "w5"},
    ]
    both = {"repeated_answers": "skip", "missing_answers": "skip"}
    data = write(tmp_path / "train/train.jsonl", [*texts, *bad])
    write(tmp_path / "train/validation.jsonl", texts[:9])
    inputs = prepare(
        job_of(tmp_path, "bad", ANSWER, data.replace("/train.jsonl", ""), options=both)
    )
    last = len(texts)
    assert (
        "train: 1 row skipped, because the context does not have the answer "
        f"(train.jsonl:{last + 1})"
    ) in inputs.notices
    assert (
        f"train: 1 row skipped, because the context has the answer several times (train.jsonl:"
        f"{last + 2})"
    ) in inputs.notices
    [train] = [found for found in inputs.report["sets"] if found["set"] == "train"]
    assert (train["rows"], train["left_out"]) == (last + 2, 2)


@pytest.mark.parametrize("kind", ["single", "dict", "gzip"])
def test_saved_data_sets_and_gzip(tmp_path: Path, kind: str) -> None:
    rows = named(50)
    folder = tmp_path / "data"
    whole = datasets.Dataset.from_list(rows)
    plain: dict[str, Sequence[Row]] = {"train": rows}
    if kind == "gzip":
        write(folder / "train.jsonl.gz", rows)
    elif kind == "single":
        whole.save_to_disk(str(folder), num_shards=3)
    else:
        plain = {"train": rows[:40], "validation": rows[40:]}
        splits = {name: datasets.Dataset.from_list([*some]) for name, some in plain.items()}
        datasets.DatasetDict(splits).save_to_disk(str(folder))
    for name, some in plain.items():
        write(tmp_path / "plain" / f"{name}.jsonl", some)
    found = digests(job_of(tmp_path, "saved", CLASSIFY, str(folder)))[0]
    assert found == digests(job_of(tmp_path, "rows", CLASSIFY, str(tmp_path / "plain")))[0]


def test_a_saved_data_set_has_names_of_classes_and_may_be_damaged(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(classes(40, 1))
    names = datasets.ClassLabel(names=["worse", "same", "better"])
    rows.cast_column("label", names).save_to_disk(str(tmp_path / "data"))
    inputs = prepare(job_of(tmp_path, "named", CLASSIFY, str(tmp_path / "data")))
    assert Samples(Path(inputs.samples) / "train").about["names"] == ["worse", "same", "better"]
    [arrow] = (tmp_path / "data").glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:-400])
    with pytest.raises(Exception, match=rf"{arrow.name}: "):
        prepare(job_of(tmp_path, "damaged", CLASSIFY, str(tmp_path / "data")))


def test_an_export_in_arrow_is_recognized_by_the_hosts(tmp_path: Path) -> None:
    """Argilla writes its records as a data set of Hugging Face."""
    rows = named(40)
    records = [
        {"text": row["text"], "label.responses": [row["label"], "fair"],
         "label.responses.users": ["u", "v"],
         "label.responses.status": ["submitted", "discarded"]} for row in rows
    ]  # fmt: skip
    datasets.Dataset.from_list(records).save_to_disk(str(tmp_path / "data"))
    found, notices = digests(job_of(tmp_path, "records", CLASSIFY, str(tmp_path / "data")))
    plain = write(tmp_path / "plain.jsonl", rows)
    assert found == digests(job_of(tmp_path, "plain", CLASSIFY, plain))[0]
    assert any(
        note.startswith("train is an export of Argilla 2 (flattened records): 40 of 40 rows")
        for note in notices
    )


def test_cells_with_several_classes_give_the_samples_of_lists(tmp_path: Path) -> None:
    rows = sets_of_classes(60, 1)
    wanted, _ = digests(job_of(tmp_path, "lists", CLASSIFY, write(tmp_path / "rows.jsonl", rows)))
    for name, form in (("comma", ", ".join), ("list", str), ("pipe", "|".join)):
        cells = [{**row, "label": form(row["label"])} for row in rows]
        data = write(tmp_path / f"{name}.jsonl", cells)
        found, notices = digests(job_of(tmp_path, name, CLASSIFY, data))
        assert found == wanted, name
        assert any(f"(label_separator={name})" in note for note in notices)


def test_a_model_trained_on_an_export_evaluates_and_predicts_exports(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unlabelled tasks of a project are what its annotators want predicted."""
    monkeypatch.setattr(rank, "join_world", lambda: world)
    monkeypatch.setattr(rank, "leave_world", lambda: None)
    rows = [*label_studio(named(40), "label")]
    data = write(tmp_path / "project.json", rows)

    def run(name: str, model: str, purpose: Purpose) -> dict[str, Any]:
        job = make_whole_job(tmp_path / name, CLASSIFY, data, model, max_steps=4)
        job = Job(**{**vars(job), "purpose": purpose})
        write_inputs(job.run_dir, prepare(job))
        rank.run(job)
        events = (job.run_dir / "events.jsonl").read_text().splitlines()
        [result] = [event for event in map(json.loads, events) if event["event"] == "result"]
        return {**result, "model": str(job.run_dir / "model")}

    trained = run("trained", write_model(tmp_path / "model", "bert", CLASSIFY), "train")
    assert read_trained(Path(trained["model"]))["options"]["label_column"] == "topic"
    assert "accuracy" in run("evaluated", trained["model"], "evaluate")["metrics"]
    predicted = run("predicted", trained["model"], "predict")
    lines = (Path(predicted["predictions"]) / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == [row["data"]["text"] for row in rows]
