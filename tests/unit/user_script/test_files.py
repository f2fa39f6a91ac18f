"""The files of a script's folder that are copied."""

from pathlib import Path

import pytest

from ftcluster.errors import UsageError
from ftcluster.user_script import files
from ftcluster.user_script.files import choose_files
from tests.rights import bound_by_modes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "glue"
    for name in ("train.py", "conf/a.yaml", "conf/deep/b.yaml"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    return made


def test_files_at_every_depth(folder: Path) -> None:
    copied = choose_files(folder)
    assert copied.files == ("conf/a.yaml", "conf/deep/b.yaml", "train.py")
    assert copied.size_bytes == sum(len(name) for name in copied.files)
    assert copied.left_out == ()


def test_junk_is_left_out(folder: Path) -> None:
    for name in (".git/config", "conf/__pycache__/a.pyc", ".venv/bin/python", "x.pyc", "y.py~",
                 "mine/pyvenv.cfg", "mine/lib/z.py", ".gitignore"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    copied = choose_files(folder)
    assert copied.files == (".gitignore", "conf/a.yaml", "conf/deep/b.yaml", "train.py")
    assert copied.left_out == (".git", ".venv", "conf/__pycache__", "mine", "x.pyc", "y.py~")


def test_links_within_the_folder_are_what_they_point_to(folder: Path) -> None:
    (folder / "link.py").symlink_to("train.py")
    (folder / "other").symlink_to(folder / "conf")
    (folder / "conf/deep/round").symlink_to(folder)
    (folder / ".#lock").symlink_to("user@host.1234")
    assert choose_files(folder).files == (
        "conf/a.yaml", "conf/deep/b.yaml", "link.py", "other/a.yaml", "other/deep/b.yaml",
        "train.py",
    )  # fmt: skip


def test_links_that_leave_the_folder_are_named_all_together(folder: Path) -> None:
    (folder / "data").symlink_to("/usr")
    (folder / "conf/up.py").symlink_to("../../up.py")
    (folder.parent / "up.py").touch()
    with pytest.raises(UsageError) as caught:
        choose_files(folder)
    assert "data -> /usr" in str(caught.value)
    assert "conf/up.py -> ../../up.py" in str(caught.value)


def test_too_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    with pytest.raises(UsageError, match="contains more than 2 files"):
        choose_files(folder)


def test_too_much_names_what_is_large(folder: Path) -> None:
    (folder / "data").mkdir()
    with (folder / "data/large.bin").open("wb") as file:
        file.truncate(files.MAX_BYTES + 1)  # a sparse file
    with pytest.raises(UsageError) as caught:
        choose_files(folder)
    assert (
        "contains 1,000 MB, too much to copy (at most 1,000 MB); largest: data 1,000 MB, conf 0 MB"
        in (str(caught.value))
    )


@pytest.mark.parametrize("where", ["/", "/tmp", "/root", "/etc"])
def test_folders_of_the_system(where: str) -> None:
    with pytest.raises(UsageError, match="not copied as a whole"):
        choose_files(Path(where))


def test_a_home_folder(folder: Path) -> None:
    with pytest.raises(UsageError, match="not copied as a whole"):
        choose_files(folder, home=folder)


def test_what_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "conf").chmod(0)
    with pytest.raises(UsageError, match="conf cannot be read: Permission denied"):
        bound_by_modes(lambda: choose_files(folder))
    (folder / "conf").chmod(0o755)
    (folder / "train.py").chmod(0)
    with pytest.raises(UsageError, match=r"train\.py cannot be read: Permission denied"):
        bound_by_modes(lambda: choose_files(folder).name)


def test_the_name_changes_with_contents_names_and_modes(folder: Path) -> None:
    seen = {choose_files(folder).name}
    (folder / "train.py").write_text("changed.")
    seen.add(choose_files(folder).name)
    (folder / "conf/a.yaml").rename(folder / "conf/c.yaml")
    seen.add(choose_files(folder).name)
    (folder / "train.py").chmod(0o755)
    seen.add(choose_files(folder).name)
    (folder / ".git").mkdir()
    seen.add(choose_files(folder).name)
    assert len(seen) == 4
    assert all(name.startswith("glue-") for name in seen)
