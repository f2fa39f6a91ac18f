"""Problems in the files of a data folder."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster.errors import InputError
from ftcluster.recipe.dataset_checks import MAX_PROBLEMS, check_data
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.data.data_files import Table, files_of
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.classify import TextClassification
from tests.unit.shell import Said

MRPC = load_recipe("mrpc")
STSB = load_recipe("glue", ["glue_task=stsb"])
SQUAD = load_recipe("squad")
CLM = load_recipe("clm")
EMBED = load_recipe("embed")
RERANK = load_recipe("rerank")
NER, MLM = load_recipe("ner"), load_recipe("mlm")
SFT = load_recipe("sft")
PLAIN = load_recipe("sft", ["chat_template=false"])
DPO = load_recipe("dpo")
PLAIN_DPO = load_recipe("dpo", ["chat_template=false"])
KTO = load_recipe("kto")
FEW_SHOT = load_recipe("few-shot", ["num_samples=null"])
FOUND = replace(MRPC, options=TextClassification())
NAMED = replace(MRPC, options=TextClassification(label_columns=("bad", "worse")))
SKIPS = replace(MRPC, options=TextClassification(skip_incomplete=True))
ASKS = {"role": "user", "content": "a"}
ANSWERS = {"role": "assistant", "content": "b"}
EMPTY = {"role": "assistant", "content": " "}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
PAIR = {"sentence1": "a", "sentence2": "b", "label": 1}
QUESTION = {
    "question": "When?",
    "context": "It began in October 1973.",
    "answers": {"text": ["October 1973", "1973"], "answer_start": [12, 20]},
}


def write(folder: Path, **files: list[Any]) -> Path:
    """Write a JSONL file for each split."""
    for split, rows in files.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def problems_of(folder: Path, recipe: Recipe = MRPC) -> str:
    """Return the problems without the path of the folder."""
    with pytest.raises(InputError) as caught:
        check_data(folder, recipe)
    return str(caught.value).replace(f"{folder}/", "").replace(str(folder), "FOLDER")


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [
        (MRPC, [PAIR, {**PAIR, "label": 0}]),
        (FOUND, [{"text": "a", "labels": ["x", "y"]}, {"text": "b", "labels": []}]),
        (FOUND, [{"text": "a", "bad": n, "worse": "0", "worst": True} for n in (0, 1)]),
        (
            SKIPS,
            [{"text": "a", "label": n} for n in (0, 1, None, "")] + [{"text": " ", "label": 1}],
        ),
        (MRPC, [{**PAIR, "label": "same"}, {**PAIR, "label": True}]),
        (STSB, [{**PAIR, "label": 3}, {**PAIR, "label": 2.5}]),
        (SQUAD, [QUESTION, {**QUESTION, "answers": {"text": [], "answer_start": []}}]),
        (CLM, [{"text": "to be"}]),
        (MLM, [{"text": "to be"}]),
        (NER, [{"tokens": ["a", "b"], "ner_tags": ["B-X", "I-X"]}]),
        (NER, [{"text": "a b", "entities": [[0, 1, "X"]]}, {"text": "", "entities": []}]),
        (EMBED, [{"anchor": "a", "answer": "b"}]),
        (EMBED, [{"query": "a", "positive": "b", "negative_1": n} for n in ("c", "", None, ["d"])]),
        (EMBED, [QUESTION]),
        (RERANK, [{"query": "a", "text": "b", "label": n} for n in (0, 1, 0.5, "1", True)]),
        (RERANK, [{"anchor": "a", "positive": "b", "negative": "c", "label": "of negatives"}]),
        (SFT, [{"conversations": [ASKS, ANSWERS, ASKS, ANSWERS], "prompt": 1}]),
        (SFT, [{"messages": [ASKS, CALLS, {"role": "tool", "content": ""}], "tools": [{}]}]),
        (SFT, [{"prompt": [ASKS], "completion": [ANSWERS]}, {"prompt": "a", "completion": "b"}]),
        (PLAIN, [{"Question": "a", "Answer": "b"}]),
        (DPO, [{"prompt": "a", "chosen": "b", "rejected": "c"}]),
        (DPO, [{"Question": [ASKS], "chosen": [ANSWERS], "rejected": [ANSWERS]}]),
        (DPO, [{"prompt": "a", "chosen": [ASKS, ANSWERS], "rejected": [ASKS, ANSWERS]}]),
        (DPO, [{"prompt": "a", "chosen": [ANSWERS], "rejected": [ANSWERS, ASKS, ANSWERS]}]),
        (PLAIN_DPO, [{"prompt": "a", "chosen": "b", "rejected": "c"}]),
        (
            KTO,
            [
                {"prompt": "a", "completion": "b", "label": label}
                for label in (True, False, 1, "0", "thumbs_up", "Down", "\N{THUMBS UP SIGN}", -1)
            ],
        ),
        (KTO, [{"messages": [ASKS, ANSWERS], "label": label} for label in (True, False)]),
        (FEW_SHOT, [{"text": "a", "label": label} for label in ("x", "x", "y")]),
    ],
)
def test_good_folders(tmp_path: Path, recipe: Recipe, rows: list[Any]) -> None:
    check_data(write(tmp_path, train=rows, validation=rows), recipe)


def test_columns_that_divide_the_rows(tmp_path: Path) -> None:
    rows = [{**PAIR, "writer": "a"}, {**PAIR, "writer": ""}, PAIR]
    write(tmp_path, train=rows, test=[{**PAIR, "label": -1, "writer": "b"}])
    groups = replace(MRPC, group_column="writer")
    found = problems_of(tmp_path, groups)
    assert "train.jsonl:2: column writer is empty, so the row cannot be assigned to a" in found
    assert "train.jsonl:3: " in found
    assert "test.jsonl" not in found
    found = problems_of(tmp_path, replace(MRPC, stratify_column="author"))
    assert "train.jsonl:1: no column author" in found
    assert "sentence1, sentence2, label, writer" in found
    assert "stratify_column=NAME" in found
    folds = replace(groups, folds=3, fold=1)
    write(tmp_path, train=[{**PAIR, "writer": n, "label": n} for n in (0, 1)], validation=[PAIR])
    assert "validation.jsonl: with folds, the validation sets" in problems_of(tmp_path, folds)
    assert "test.jsonl:1: label is -1" in problems_of(tmp_path, replace(groups, test_split_rows=1))


@pytest.mark.parametrize(
    ("recipe", "good", "changes"),
    [
        (MRPC, PAIR, [{"label": label} for label in (-1, " ", 0.5, [1], None)]),
        (MRPC, PAIR, [{"sentence1": None}]),
        (FOUND, {"text": "a", "labels": ["x"]}, [{"labels": label} for label in ("x", [None])]),
        (NAMED, {"text": "a", "bad": 1, "worse": 0}, [{"bad": 2}, {"worse": None}]),
        (STSB, PAIR, [{"label": label} for label in ("good", True, None, float("nan"))]),
        (SQUAD, QUESTION, [
            {"question": None},
            {"answers": "1973"},
            {"answers": {"text": ["1973"]}},
            {"answers": {"text": ["1973"], "answer_start": []}},
            {"answers": {"text": ["1973"], "answer_start": ["20"]}},
            {"answers": {"text": ["1973"], "answer_start": [12]}},
        ]),
        (CLM, {"text": "to be"}, [{"text": 3}]),
        (EMBED, {"query": "a", "positive": "b", "negatives": ["c"]}, [
            {"query": ""}, {"positive": " "}, {"positive": None}, {"negatives": ["c", ""]},
            {"negatives": 3},
        ]),
        (RERANK, {"query": "a", "text": "b", "label": 1}, [
            {"label": 2}, {"label": "no"}, {"label": None}, {"label": float("nan")}, {"text": ""},
        ]),
        (RERANK, {"query": "a", "text": "b"}, []),
        (SFT, {"messages": [ASKS, ANSWERS]}, [
            {"messages": []}, {"messages": "a"}, {"messages": [ASKS]}, {"messages": [ASKS, "b"]},
            {"messages": [{"from": "human", "value": "a"}]}, {"messages": [ASKS, EMPTY]},
            {"messages": [{"role": "user", "content": None}, ANSWERS]},
            {"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWERS]},
        ]),
        (SFT, {"prompt": "a", "completion": "b"}, [
            {"prompt": " "}, {"completion": ""}, {"completion": None}, {"completion": [ASKS]},
        ]),
        (PLAIN, {"prompt": "a", "completion": "b"}, [{"completion": [ANSWERS]}]),
        (PLAIN, {"messages": [ASKS, ANSWERS]}, [{}]),
        (SFT, {"instruction": "a", "input": "b", "output2": "c"}, []),
        (DPO, {"prompt": "a", "chosen": "b", "rejected": "c"}, [
            {"prompt": " "}, {"chosen": ""}, {"rejected": 1}, {"rejected": [ANSWERS]},
            {"chosen": [ANSWERS], "rejected": [ASKS]}, {"prompt": [ASKS, 1], "chosen": [ANSWERS]},
        ]),
        (DPO, {"chosen": [ASKS, ANSWERS], "rejected": [ASKS, ANSWERS]}, [
            {"chosen": [{**ASKS, "content": "other"}, ANSWERS]}, {"rejected": [ASKS]},
            {"rejected": [ANSWERS]}, {"chosen": [ANSWERS], "rejected": [ANSWERS]},
        ]),
        (DPO, {"question": "a", "answer": "b"}, []),
        (PLAIN_DPO, {"prompt": "a", "chosen": "b", "rejected": "c"}, [{"prompt": [ASKS]}]),
        (KTO, {"prompt": "a", "completion": "b", "label": True}, [
            {"label": None}, {"label": 4}, {"label": ""}, {"label": "maybe"}, {"completion": ""},
        ]),
        (KTO, {"messages": [ASKS, ANSWERS], "label": True}, [
            {"messages": [ANSWERS]}, {"messages": [ASKS, ANSWERS, ASKS]},
            {"messages": [ASKS, {**ANSWERS, "weight": 0}]},
        ]),
        (KTO, {"prompt": "a", "completion": "b"}, []),
        (KTO, {"prompt": "a", "completion": "b", "label": True}, []),
        (KTO, {"prompt": "a", "completion": "b", "label": "down"}, []),
        (FEW_SHOT, {"text": "a", "label": "x"}, [
            {"label": ""}, {"label": None}, {"label": 0.5}, {"text": 3},
        ]),
        (FEW_SHOT, {"text": "a", "label": "x"}, [{}]),
        (FEW_SHOT, {"text": "a", "label": "x"}, [{"label": "y"}]),
        (FEW_SHOT, {"text": "a", "label": "x"}, [{"label": "y"}, *[{}] * 1400]),
        (FEW_SHOT, {"sentence1": "a", "sentence2": "b", "label": "x"}, []),
    ],
    ids=["classes", "texts", "lists", "columns", "numbers", "answers", "text", "search", "ranking",
         "no labels", "messages", "completions", "no template", "messages without template",
         "no conversations", "preferences", "preferred conversations", "no preferences",
         "preferences as texts", "judged answers", "judged messages", "no judgements",
         "only liked answers", "only disliked answers", "few labels", "one class",
         "one row of each class", "many rows", "pairs for few labels"],
)  # fmt: skip
def test_rows(tmp_path: Path, recipe: Recipe, good: Any, changes: list[Any], said: Said) -> None:
    rows = [good, *({**good, **change} for change in changes)]
    said(problems_of(write(tmp_path, train=rows, validation=[good]), recipe))


@pytest.mark.parametrize(
    ("labels", "refused"),
    [("4 3.8 2", True), ("4 3 2", False), ("4.0+ 3.8 good", False), ("-1 0 1", False)],
)
def test_scores_are_no_classes(tmp_path: Path, labels: str, refused: bool, said: Said) -> None:
    rows = "".join(f"a,{label}\n" for label in labels.split())
    (tmp_path / "reviews.csv").write_text(f"text,stars\n{rows}")
    recipe = load_recipe("classify")
    if refused:
        said(problems_of(tmp_path, recipe))
        recipe = load_recipe("classify", ["regression=true"])
    check_data(tmp_path, recipe)


def test_files(tmp_path: Path, said: Said) -> None:
    said(problems_of(tmp_path / "none"))
    write(tmp_path, train=[])
    said(problems_of(tmp_path))
    said(problems_of(tmp_path, load_recipe("glue", ["glue_task=mnli"])))
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "validation.jsonl").write_text("\n{\"a\": 1}\n\n3\n{'a': 1}\n")
    said(problems_of(tmp_path))


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    found = problems_of(write(tmp_path, train=[3] * 500, validation=[PAIR]))
    assert found.count("train.jsonl:") == MAX_PROBLEMS + 1


def test_texts(tmp_path: Path, said: Said) -> None:
    (tmp_path / "validation.txt").write_text("held back")
    said(problems_of(tmp_path, CLM))
    (tmp_path / "a.txt").write_text("to be")
    check_data(tmp_path, CLM)
    (tmp_path / "b.txt").write_text("\n \n")
    (tmp_path / "c.txt").write_bytes(b"\xff")
    said(problems_of(tmp_path, CLM))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'Review,Sentiment\n"good, very",pos\nbad,neg\n'),
        ("a.csv", ",review,sentiment\n0,good,pos\n1,bad,neg\n"),  # the index column of pandas
        ("a.csv", "review;sentiment\ngood;1\nbad;0\n"),
        ("a.tsv", "review\tsentiment\ngood\tpos\n"),
        ("a.json", '[{"review": "good", "sentiment": "pos"}]'),
        ("a.json", '{"version": 1, "data": [{"review": "good", "sentiment": "pos"}]}'),
        ("a.json", '{"review": "a", "sentiment": 1}\n{"review": "b", "sentiment": 0}\n'),
        ("a.jsonl", '\ufeff{"review": "good", "sentiment": true}\n'),
        ("a.parquet", "PAR1"),
    ],
)
def test_formats_with_columns_found_by_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    # a folder, or a file from which validation rows are split off
    for path in (tmp_path, tmp_path / name):
        check_data(path, FOUND)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "good,pos\nbad,neg\n"),
        ("a.csv", "review,sentiment\ngood\nbad,neg\n"),
        ("a.csv", "review,review\na,b\n"),
        ("a.csv", "review,sentiment\n"),
        ("a.csv", ""),
        ("a.json", '[{"review": "good"\n"a": 1}]'),
        ("a.parquet", "no"),
        ("a.xlsx", ""),
    ],
)
def test_files_that_are_not_as_their_names_say(
    tmp_path: Path, name: str, text: str, said: Said
) -> None:
    (tmp_path / name).write_text(text)
    said(problems_of(tmp_path / name, FOUND))


def test_squads_own_files(tmp_path: Path) -> None:
    qas = [
        {"id": "1", "question": "When?", "answers": [{"text": "1973", "answer_start": 20}]},
        {"id": "2", "question": "Where?", "answers": [], "is_impossible": True},
    ]
    paragraph = {"context": QUESTION["context"], "qas": qas}
    file = tmp_path / "train-v2.0.json"
    file.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": [paragraph]}]}))
    check_data(tmp_path, SQUAD)
    first, second = Table(files_of(tmp_path)["train"])
    assert first["answers"] == {"text": ["1973"], "answer_start": [20]}
    assert second["answers"] == {"text": [], "answer_start": []}
    file.write_text(json.dumps({"data": [{"paragraphs": [{"qas": [{}]}]}]}))
    assert "not in SQuAD's format: KeyError('question')" in problems_of(tmp_path, SQUAD)


def test_what_is_evaluated_and_predicted(tmp_path: Path) -> None:
    write(tmp_path, train=[PAIR], test=[{"sentence1": "a", "sentence2": "b"}])
    check_data(tmp_path / "test.jsonl", MRPC, "predict")
    check_data(tmp_path / "train.jsonl", MRPC, "evaluate")
    with pytest.raises(InputError, match="has no file for validation, only for"):
        check_data(tmp_path, MRPC, "evaluate")
    check_data(tmp_path, MRPC, "predict")
    check_data(tmp_path, MRPC)  # the test set needs no labels
    (tmp_path / "test.jsonl").rename(tmp_path / "validation.jsonl")
    with pytest.raises(InputError, match="has no file for test, only for train, validation"):
        check_data(tmp_path, MRPC, "predict")


HARMFUL = {
    "deep": "[" * 100_000,
    "deep in a list": "[1, " + "[" * 100_000,
    "deep in a row": '{"sentence1": ' * 50_000,
    "a number without end": '{"label": ' + "9" * 5000 + "}",
    "a long number": '{"sentence1": "a", "sentence2": "b", "label": ' + "9" * 4000 + "}",
    "infinite": '{"sentence1": 1e999, "sentence2": NaN, "label": -1e999}',
    "articles without paragraphs": '[{"paragraphs": 5}]',
    "paragraphs without questions": '[{"paragraphs": [{"qas": [{"answers": [5]}]}]}]',
    "numbers for names": '{"5": 5, "": "", "a": {"a": {"a": []}}}',
    "half of a letter": '{"sentence1": "\\ud800", "sentence2": "b", "label": 1}',
    "a long number in a table": "sentence1,sentence2,label\na,b," + "9" * 5000 + "\n",
    "bytes of zero": "a\0b\n\0\n",
}


@pytest.mark.parametrize(
    "name",
    [
        "mrpc",
        "squad",
        "sft",
        "dpo",
        "kto",
        "few-shot",
        "embed",
        "rerank",
        "seq2seq",
        "distill",
        "clm",
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
def test_data_that_were_made_to_harm_are_refused_or_read(
    tmp_path: Path, name: str, suffix: str
) -> None:
    path = tmp_path / f"data{suffix}"
    recipe = load_recipe(name, [f"data={path}"])
    for text in HARMFUL.values():
        path.write_text(text)
        with contextlib.suppress(InputError):
            check_data(path, recipe)
