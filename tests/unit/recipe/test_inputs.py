import json
from pathlib import Path

import pytest

from ftcluster.errors import InputError
from ftcluster.recipe.dataset_checks import check_data_folder
from ftcluster.recipe.inputs import check_inputs, check_model_folder
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.recipe import Recipe

MRPC = load_recipe("mrpc")
STSB = load_recipe("glue", ["glue_task=stsb"])
MNLI = load_recipe("glue", ["glue_task=mnli"])
SQUAD = load_recipe("squad")
CLM = load_recipe("clm")
ROW = {"sentence1": "a", "sentence2": "b", "label": 1}


def write(folder: Path, train: str, validation: str | None = None) -> Path:
    (folder / "train.jsonl").write_text(train)
    if validation is not None:
        (folder / "validation.jsonl").write_text(validation)
    return folder


def problems_of(folder: Path, recipe: Recipe = MRPC) -> str:
    with pytest.raises(InputError) as caught:
        check_data_folder(folder, recipe)
    return str(caught.value)


def test_a_good_folder_passes(tmp_path: Path) -> None:
    lines = json.dumps(ROW) + "\n"
    check_data_folder(write(tmp_path, lines * 3, lines), MRPC)


def test_missing_columns_name_what_was_found(tmp_path: Path) -> None:
    good = json.dumps(ROW)
    bad = json.dumps({"text": "a", "sentence2": "b", "label": 0})
    found = problems_of(write(tmp_path, f"{good}\n{bad}\n", good))
    assert "train.jsonl:2: no column sentence1; found text, sentence2, label" in found


def test_broken_json_names_its_line(tmp_path: Path) -> None:
    good = json.dumps(ROW)
    found = problems_of(write(tmp_path, f"{good}\n\n{{'a': 1}}\n", good))
    assert "train.jsonl:3: broken JSON" in found


def test_empty_and_missing_files_are_reported_together(tmp_path: Path) -> None:
    found = problems_of(write(tmp_path, ""))
    assert "train.jsonl is empty" in found
    assert "validation.jsonl does not exist; the folder has: train.jsonl" in found


@pytest.mark.parametrize("label", [-1, "1", 0.5, True, None])
def test_labels_are_class_numbers(tmp_path: Path, label: object) -> None:
    line = json.dumps({**ROW, "label": label})
    assert "not a class number" in problems_of(write(tmp_path, line, json.dumps(ROW)))


def test_a_text_that_is_none(tmp_path: Path) -> None:
    line = json.dumps({**ROW, "sentence1": None})
    assert "sentence1 is None, not a text" in problems_of(write(tmp_path, line, line))


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    found = problems_of(write(tmp_path, "x\n" * 500, json.dumps(ROW)))
    assert found.count("broken JSON") == 10
    assert "not read further" in found


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "validation.jsonl").write_text(json.dumps(ROW))
    assert "not UTF-8" in problems_of(tmp_path)


def test_a_data_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert "does not exist" in problems_of(tmp_path / "none")


def test_a_model_folder_that_is_none_says_all_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        check_model_folder(tmp_path, MRPC)
    for part in ("no config.json", "no weights", "no tokenizer"):
        assert part in str(caught.value)


def test_a_model_folder_with_a_broken_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(InputError, match=r"config\.json is not JSON"):
        check_model_folder(tmp_path, MRPC)
    (tmp_path / "config.json").write_text("{}")
    check_model_folder(tmp_path, MRPC)


def test_from_scratch_a_configuration_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    check_model_folder(tmp_path, load_recipe("gpt2-shakespeare"))
    with pytest.raises(InputError) as caught:
        check_model_folder(tmp_path, load_recipe("mrpc", ["from_scratch=true"]))
    assert "no weights" not in str(caught.value)
    assert "no tokenizer" in str(caught.value)
    check_model_folder(tmp_path, load_recipe("mrpc", ["from_scratch=true", "tokenizer=t"]))


@pytest.mark.parametrize("label", [3, 2.5])
def test_labels_of_a_regression_are_numbers(tmp_path: Path, label: float) -> None:
    line = json.dumps({**ROW, "label": label})
    check_data_folder(write(tmp_path, line, line), STSB)


@pytest.mark.parametrize("label", ["2.5", True, None, float("nan")])
def test_labels_of_a_regression_that_are_none(tmp_path: Path, label: object) -> None:
    line = json.dumps({**ROW, "label": label})
    assert "not a number" in problems_of(write(tmp_path, line, line), STSB)


def test_every_set_that_is_evaluated_is_needed(tmp_path: Path) -> None:
    found = problems_of(write(tmp_path, "", None), MNLI)
    for name in ("train.jsonl is empty", "validation_matched.jsonl does not exist",
                 "validation_mismatched.jsonl does not exist"):  # fmt: skip
        assert name in found


CONTEXT = "It began in October 1973."
QUESTION = {
    "question": "When?", "context": CONTEXT,
    "answers": {"text": ["October 1973", "1973"], "answer_start": [12, 20]},
}  # fmt: skip


def test_questions_and_answers(tmp_path: Path) -> None:
    unanswered = {**QUESTION, "answers": {"text": [], "answer_start": []}}
    lines = "".join(json.dumps(row) + "\n" for row in (QUESTION, unanswered))
    check_data_folder(write(tmp_path, lines, lines), SQUAD)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"question": None}, "train.jsonl:2: question is None, not a text"),
        ({"answers": "1973"}, "answers is '1973', not an object with text and answer_start"),
        ({"answers": {"text": ["1973"]}}, "not an object with text and answer_start"),
        ({"answers": {"text": ["1973"], "answer_start": []}}, "not two lists of one length"),
        ({"answers": {"text": ["1973"], "answer_start": ["20"]}}, "'1973' at '20', not a text at"),
        ({"answers": {"text": ["1973"], "answer_start": [12]}},
         "the answer '1973' is not at 12 of the context, 'Octo' is there"),
    ],
)  # fmt: skip
def test_questions_that_are_none(tmp_path: Path, changes: dict[str, object], expected: str) -> None:
    good = json.dumps(QUESTION)
    lines = f"{good}\n{json.dumps({**QUESTION, **changes})}\n"
    assert expected in problems_of(write(tmp_path, lines, good), SQUAD)


def test_texts(tmp_path: Path) -> None:
    assert "there is no text to train on; the folder has: nothing" in problems_of(tmp_path, CLM)
    (tmp_path / "validation.txt").write_text("held back")
    assert "there is no text to train on" in problems_of(tmp_path, CLM)
    (tmp_path / "a.txt").write_text("to be")
    check_data_folder(tmp_path, CLM)
    (tmp_path / "b.txt").write_text("\n \n")
    (tmp_path / "c.txt").write_bytes(b"\xff")
    found = problems_of(tmp_path, CLM)
    assert "b.txt is empty" in found
    assert "c.txt: not UTF-8" in found


def test_texts_in_rows(tmp_path: Path) -> None:
    write(tmp_path, '{"text": "to be"}\n')
    check_data_folder(tmp_path, CLM)
    write(tmp_path, '{"text": "to be"}\n{"body": "or not"}\n')
    assert "train.jsonl:2: no column text; found body" in problems_of(tmp_path, CLM)


def test_all_folders_of_a_recipe_are_checked_at_once(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    values = (f"data={tmp_path}/d", f"model={tmp_path}/m", f"tokenizer={tmp_path}/t")
    with pytest.raises(InputError) as caught:
        check_inputs(load_recipe("clm", values))
    for part in ("d does not exist", "m does not exist", "t has no tokenizer"):
        assert part in str(caught.value)
    check_inputs(load_recipe("clm"))  # names are left to the hosts
