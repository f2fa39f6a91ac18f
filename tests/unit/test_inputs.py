import json
from pathlib import Path

import pytest

from ftcluster.errors import InputError
from ftcluster.inputs import check_data_folder, check_model_folder

ROW = {"sentence1": "a", "sentence2": "b", "label": 1}


def write(folder: Path, train: str, validation: str | None = None) -> Path:
    (folder / "train.jsonl").write_text(train)
    if validation is not None:
        (folder / "validation.jsonl").write_text(validation)
    return folder


def problems_of(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        check_data_folder(folder, ("sentence1", "sentence2"), "label")
    return str(caught.value)


def test_a_good_folder_passes(tmp_path: Path) -> None:
    lines = json.dumps(ROW) + "\n"
    check_data_folder(write(tmp_path, lines * 3, lines), ("sentence1", "sentence2"), "label")


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
        check_model_folder(tmp_path)
    for part in ("no config.json", "no weights", "no tokenizer"):
        assert part in str(caught.value)


def test_a_model_folder_with_a_broken_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(InputError, match=r"config\.json is not JSON"):
        check_model_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    check_model_folder(tmp_path)
