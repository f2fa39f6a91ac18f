import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.module_utils.safe_path import write_text
from ansible_collections.ftcluster.cluster.plugins.modules.files import settle

EMPTY = {"state": "file", "content": None, "mode": None, "owner": "", "group": ""}


def settled(path: Path, check: bool = False, **entry: Any) -> bool:
    return bool(settle({**EMPTY, "path": str(path), **entry}, check)[0])


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    assert settle({**EMPTY, "path": str(path), "content": "{}\n", "mode": "0640"}, False) == (
        True, "", "{}\n",
    )  # fmt: skip
    assert path.read_text() == "{}\n"
    assert mode(path) == 0o640
    assert not settled(path, content="{}\n", mode="0640")
    assert settle({**EMPTY, "path": str(path), "content": "[]\n"}, False) == (
        True, "{}\n", "[]\n",
    )  # fmt: skip
    assert [found.name for found in tmp_path.iterdir()] == ["job.json"]
    # without a mode, the file is readable for everybody
    assert settled(tmp_path / "a", content="x")
    assert mode(tmp_path / "a") == 0o644
    # another mode alone is a change
    path = tmp_path / "a"
    settled(path, content="x", mode="0644")
    assert settled(path, content="x", mode="0600")
    assert mode(path) == 0o600


def test_a_write_that_is_broken_off_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new", 0o644)
    assert [found.name for found in tmp_path.iterdir()] == ["a"]
    assert path.read_text() == "old"


def test_a_file_without_content_keeps_its_text(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert not settled(path, mode="0600")
    assert not path.exists()
    path.write_text("kept")
    path.chmod(0o644)
    assert settled(path, mode="0600")
    assert (path.read_text(), mode(path)) == ("kept", 0o600)


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    before = os.umask(0o077)
    try:
        assert settled(path, state="directory", mode="0755")
    finally:
        os.umask(before)
    assert mode(path) == 0o755
    assert not settled(path, state="directory", mode="0755")
    assert settled(path, state="directory", mode="0700")
    assert mode(path) == 0o700


def test_absent_removes_files_and_folders_with_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "folder" / "below" / "a").touch()
    (tmp_path / "b").touch()
    for name in ("folder", "b"):
        assert settled(tmp_path / name, state="absent")
        assert not settled(tmp_path / name, state="absent")
    assert list(tmp_path.iterdir()) == []
    # the link is removed, but not its target
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert settled(tmp_path / "link", state="absent")
    assert settled(tmp_path / "dangling", state="absent")
    assert [found.name for found in tmp_path.iterdir()] == ["kept"]


def test_check_mode_tells_and_leaves_everything(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o644)
    assert settled(tmp_path / "a", check=True, content="new")
    assert settled(tmp_path / "a", check=True, mode="0600")
    assert settled(tmp_path / "a", check=True, state="absent")
    assert settled(tmp_path / "b", check=True, state="directory")
    assert settled(tmp_path / "b" / "c", check=True, content="x", mode="0644")
    assert [found.name for found in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"
    assert mode(tmp_path / "a") == 0o644
    # in check mode, an owner that does not exist yet is a change
    me = pwd.getpwuid(os.getuid()).pw_name
    assert not settled(tmp_path / "a", owner=me)
    assert settled(tmp_path / "a", check=True, owner="no-such-user")
    with pytest.raises(LookupError, match="no-such-user"):
        settled(tmp_path / "a", owner="no-such-user")


def test_a_file_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="Not a directory"):
        settled(tmp_path / "a" / "b", content="x")


@pytest.mark.parametrize("check", [False, True])
def test_only_an_empty_folder_is_removed_if_empty(tmp_path: Path, check: bool) -> None:
    (tmp_path / "full/empty").mkdir(parents=True)
    (tmp_path / "link").symlink_to("full/empty")
    assert not settled(tmp_path / "full", check, state="absent_if_empty")
    assert not settled(tmp_path / "link", check, state="absent_if_empty")
    assert not settled(tmp_path / "missing", check, state="absent_if_empty")
    assert settled(tmp_path / "full/empty", check, state="absent_if_empty")
    assert (tmp_path / "full/empty").exists() == check
