from pathlib import Path

import pytest

from ftcluster.recipe.inputs import folder_name


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "mrpc"
    (folder / "below").mkdir(parents=True)
    (folder / "train.jsonl").write_text("ab")
    (folder / "below" / "more").write_text("cd")
    return folder


def test_the_folders_own_name_comes_first(data: Path) -> None:
    name, _, digest = folder_name(data).rpartition("-")
    assert name == "mrpc"
    assert len(digest) == 12


def test_the_same_files_elsewhere_have_the_same_name(data: Path, tmp_path: Path) -> None:
    before = folder_name(data)
    (tmp_path / "moved").mkdir()
    moved = data.rename(tmp_path / "moved" / "mrpc")
    assert folder_name(moved) == before


@pytest.mark.parametrize("change", ["text", "name", "place", "new", "gone"])
def test_any_change_of_its_files_is_another_name(data: Path, change: str) -> None:
    before, file = folder_name(data), data / "train.jsonl"
    if change == "text":
        file.write_text("aB")
    elif change == "name":
        file.rename(data / "test.jsonl")
    elif change == "place":
        file.rename(data / "below" / "train.jsonl")
    elif change == "new":
        (data / "empty").touch()
    else:
        file.unlink()
    assert folder_name(data) != before


def test_text_that_moves_from_one_file_to_the_next_is_a_change(data: Path) -> None:
    (data / "train.jsonl").write_text("a")
    before = folder_name(data)
    (data / "train.jsonl").write_text("")
    (data / "below" / "more").write_text("acd")
    assert folder_name(data) != before


def test_empty_folders_do_not_count(data: Path) -> None:
    before = folder_name(data)
    (data / "empty").mkdir()
    assert folder_name(data) == before


@pytest.mark.parametrize("path", [".", "below/..", "../mrpc", "../link"])
def test_however_the_folder_is_written_its_name_is_the_real_one(
    data: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (data.parent / "link").symlink_to(data)
    monkeypatch.chdir(data)
    assert folder_name(Path(path)) == folder_name(data)
