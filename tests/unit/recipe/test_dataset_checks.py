"""What is wrong with the files of a data folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcluster.errors import InputError
from ftcluster.recipe.dataset_checks import MAX_PROBLEMS, check_data_folder
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.recipe import Recipe

MRPC = load_recipe("mrpc")
STSB = load_recipe("glue", ["glue_task=stsb"])
SQUAD = load_recipe("squad")
CLM = load_recipe("clm")
PAIR = {"sentence1": "a", "sentence2": "b", "label": 1}
QUESTION = {
    "question": "When?",
    "context": "It began in October 1973.",
    "answers": {"text": ["October 1973", "1973"], "answer_start": [12, 20]},
}


def write(folder: Path, **files: list[Any]) -> Path:
    """A file of JSONL for each split."""
    for split, rows in files.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def problems_of(folder: Path, recipe: Recipe = MRPC) -> str:
    """Everything but the path of the folder."""
    with pytest.raises(InputError) as caught:
        check_data_folder(folder, recipe)
    return str(caught.value).replace(f"{folder}/", "").replace(str(folder), "FOLDER")


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [
        (MRPC, [PAIR]),
        (STSB, [{**PAIR, "label": 3}, {**PAIR, "label": 2.5}]),
        (SQUAD, [QUESTION, {**QUESTION, "answers": {"text": [], "answer_start": []}}]),
        (CLM, [{"text": "to be"}]),
    ],
)
def test_good_folders(tmp_path: Path, recipe: Recipe, rows: list[Any]) -> None:
    check_data_folder(write(tmp_path, train=rows, validation=rows), recipe)


@pytest.mark.parametrize(
    ("recipe", "good", "changes"),
    [
        (MRPC, PAIR, [{"label": label} for label in (-1, "1", 0.5, True, None)]),
        (MRPC, PAIR, [{"sentence1": None}]),
        (STSB, PAIR, [{"label": label} for label in ("2.5", True, None, float("nan"))]),
        (SQUAD, QUESTION, [
            {"question": None},
            {"answers": "1973"},
            {"answers": {"text": ["1973"]}},
            {"answers": {"text": ["1973"], "answer_start": []}},
            {"answers": {"text": ["1973"], "answer_start": ["20"]}},
            {"answers": {"text": ["1973"], "answer_start": [12]}},
        ]),
        (CLM, {"text": "to be"}, [{"text": 3}]),
    ],
    ids=["classes", "texts", "numbers", "answers", "text"],
)  # fmt: skip
def test_rows(
    tmp_path: Path, recipe: Recipe, good: Any, changes: list[Any], said: Callable[[object], None]
) -> None:
    rows = [good, *({**good, **change} for change in changes)]
    said(problems_of(write(tmp_path, train=rows, validation=[good]), recipe))


def test_files(tmp_path: Path, said: Callable[[object], None]) -> None:
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


def test_texts(tmp_path: Path, said: Callable[[object], None]) -> None:
    (tmp_path / "validation.txt").write_text("held back")
    said(problems_of(tmp_path, CLM))
    (tmp_path / "a.txt").write_text("to be")
    check_data_folder(tmp_path, CLM)
    (tmp_path / "b.txt").write_text("\n \n")
    (tmp_path / "c.txt").write_bytes(b"\xff")
    said(problems_of(tmp_path, CLM))
