"""Folders of save_to_disk: the files that their own lists name, and nothing outside."""

import json
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.data.data_files import DataError, files_of


def write_split(folder: Path, state: Any, shards: int = 1) -> Path:
    folder.mkdir(parents=True)
    for number in range(shards):
        (folder / f"data-{number:05}-of-{shards:05}.arrow").touch()
    (folder / "dataset_info.json").write_text('{"features": {}}')
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def state_of(shards: int = 1) -> dict[str, Any]:
    names = [f"data-{number:05}-of-{shards:05}.arrow" for number in range(shards)]
    return {"_data_files": [{"filename": name} for name in names], "_split": "test"}


def test_a_single_data_set_is_training_data_whatever_split_it_came_from(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "one", state_of(2), 2)
    assert files_of(folder) == {"train": tuple(sorted(folder.glob("*.arrow")))}


@pytest.mark.parametrize("listed", [True, False])
def test_the_splits_of_a_dict_have_its_names(tmp_path: Path, listed: bool) -> None:
    """Also splits that were saved one by one, so that no file lists them."""
    for name in ("train", "dev", "unsupervised"):
        write_split(tmp_path / name, state_of())
    if listed:
        names = ["train", "dev", "unsupervised"]
        (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": names}))
    found = {
        split: [file.parent.name for file in files] for split, files in files_of(tmp_path).items()
    }
    assert found == {"train": ["train"], "validation": ["dev"], "unsupervised": ["unsupervised"]}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"_data_files": [{"filename": "../secret.arrow"}]}, "must be a list of files"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, "must be a list of files"),
        ({"_data_files": [{"filename": "data-00007-of-00008.arrow"}]}, "missing: data-00007"),
        ({"_data_files": []}, "must be a list of files"),
        (
            {"_data_files": [{"filename": "data-00000-of-00001.arrow"}, 3]},
            "must be a list of files",
        ),
        (["a"], "not a JSON object"),
        ({**state_of(), "_indices_data_files": [{"filename": "i.arrow"}]}, "flatten_indices"),
    ],
)
def test_a_damaged_list_is_refused_with_its_file(tmp_path: Path, state: Any, problem: str) -> None:
    folder = write_split(tmp_path / "one", state)
    with pytest.raises(DataError, match=problem) as error:
        files_of(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("splits", [None, [], ["../other"], "train", [3]])
def test_splits_outside_of_the_folder_are_refused(tmp_path: Path, splits: Any) -> None:
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    with pytest.raises(DataError, match=r"dataset_dict\.json: splits must be a list of folders"):
        files_of(tmp_path)


def test_a_checkpoint_is_no_saved_data_set(tmp_path: Path) -> None:
    """Checkpoints have a state.json too."""
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5/state.json").write_text("{}")
    (tmp_path / "train.csv").touch()
    assert list(files_of(tmp_path)) == ["train"]
