import os
import socket
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils import source_files as module
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.source_files import (
    SourceError,
    open_file,
    source_files,
)

from tests.rights import bound_by_modes


def names(folder: Path) -> list[str]:
    return [name for _, name in source_files(folder)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "a").write_text("a")
    return tmp_path / "folder"


def test_links_within_the_folder_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "file").symlink_to("sub/a")
    (folder / "absolute").symlink_to(folder / "sub" / "a")
    (folder / "again").symlink_to("sub")
    (folder / "sub" / "up").symlink_to("..")  # an endless path
    (folder / ".#lock").symlink_to("user@host.123")
    (tmp_path / "link").symlink_to("folder")
    expected = ["absolute", "again/a", "file", "sub/a"]
    assert names(folder) == names(tmp_path / "link") == expected
    assert {real for real, _ in source_files(folder)} == {folder / "sub" / "a"}


def test_all_that_is_not_copied_is_named_at_once(folder: Path) -> None:
    (folder / "README.md").symlink_to("../secret")
    (folder / "etc").symlink_to("/etc")
    (folder / "zeros").symlink_to("/dev/zero")
    (folder / "chain").symlink_to("README.md")
    os.mkfifo(folder / "sub" / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        with pytest.raises(SourceError) as caught:
            source_files(folder)
    assert str(caught.value).splitlines() == [
        f"{folder} cannot be copied:",
        "  'README.md' -> '../secret': leads out of the folder",
        "  'chain' -> 'README.md': leads out of the folder",
        "  'etc' -> '/etc': leads out of the folder",
        "  'socket': is a socket",
        "  'sub/pipe': is a pipe",
        "  'zeros' -> '/dev/zero': leads out of the folder",
        "replace links by copies, and remove everything that is not a regular file",
    ]


def test_what_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "sub" / "a").chmod(0)
    with pytest.raises(SourceError, match="'sub/a': cannot be read: Permission denied"):
        bound_by_modes(lambda: source_files(folder))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Make a model in the layout of huggingface_hub."""
    for name in ("models--org--a", "models--org--b"):
        snapshot = tmp_path / "hub" / name / "snapshots" / "c0ffee"
        (snapshot / "onnx").mkdir(parents=True)
        blobs = tmp_path / "hub" / name / "blobs"
        blobs.mkdir()
        (blobs / "ab12").write_text(name)
        (snapshot / "config.json").symlink_to("../../blobs/ab12")
        (snapshot / "onnx" / "model").symlink_to("../../../blobs/ab12")
    return tmp_path / "hub" / "models--org--a" / "snapshots" / "c0ffee"


def test_a_snapshot_of_the_hub_leads_to_its_own_blobs(snapshot: Path, tmp_path: Path) -> None:
    assert names(snapshot) == ["config.json", "onnx/model"]
    with open_file(source_files(snapshot)[0][0]) as file:
        assert file.read() == b"models--org--a"
    (snapshot / "other").symlink_to("../../../models--org--b/blobs/ab12")
    (tmp_path / "secret").write_text("secret")
    (snapshot / "deep").symlink_to("../../blobs/link")
    (snapshot.parent.parent / "blobs" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(SourceError) as caught:
        source_files(snapshot)
    assert [line.split("'")[1] for line in str(caught.value).splitlines()[1:-1]] == [
        "deep", "other",
    ]  # fmt: skip


def test_a_folder_that_only_looks_like_the_hubs_has_no_blobs(snapshot: Path) -> None:
    moved = snapshot.parent.parent.rename(snapshot.parents[2] / "my-model")
    with pytest.raises(SourceError, match="leads out of the folder"):
        source_files(moved / "snapshots" / "c0ffee")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/none"])
def test_one_file_is_a_regular_one(path: str) -> None:
    with pytest.raises(SourceError, match=f"^{path} cannot be read: (is a device|No such file)"):
        source_files(Path(path))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="cannot be read: is a pipe"):
        source_files(tmp_path / "pipe")


def test_no_part_of_a_path_may_become_a_link(folder: Path, tmp_path: Path) -> None:
    [(real, _)] = source_files(folder)
    (folder / "sub").rename(tmp_path / "moved")
    (folder / "sub").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="Not a directory"):
        open_file(real)


def test_a_folder_without_end_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 40)
    for number in range(8):
        (folder / f"d{number}").mkdir()
        for link in "xy":
            (folder / f"d{number}" / link).symlink_to(f"../d{number + 1}")
    (folder / "d8").mkdir()  # without any file
    with pytest.raises(SourceError, match="it contains more than 40 files"):
        source_files(folder)
