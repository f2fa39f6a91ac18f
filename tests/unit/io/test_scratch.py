"""Temporary folders of caches, whose processes end well, fail or are killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftcluster_train.engine.data.token_cache import cached_tokens
from ftcluster_train.io import scratch
from ftcluster_train.io.scratch import remove_abandoned, scratch_folder
from tests.programs import NODE_PATH

# makes an entry of the cache of tokens, and waits in the middle
MAKES = """
import sys
from pathlib import Path
from ftcluster_train.engine.data.token_cache import cached_tokens

def make(folder):
    (folder / "half").write_bytes(bytes(4096))
    print("half", flush=True)
    sys.stdin.read()
    return []

cached_tokens(Path(sys.argv[1]), "k", make)
"""


def begin(cache: Path) -> "subprocess.Popen[str]":
    """Start a process that makes an entry; return when the entry is half-written."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKES, str(cache)], env={**os.environ, "PYTHONPATH": NODE_PATH},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    return process


def test_a_killed_process_leaves_a_folder_that_the_next_use_removes(tmp_path: Path) -> None:
    killed, alive = begin(tmp_path), begin(tmp_path)
    killed.kill()
    killed.communicate()
    assert len(list(tmp_path.iterdir())) == 2
    cached_tokens(tmp_path, "other", lambda _: [])
    other, *folders = sorted(tmp_path.iterdir(), key=lambda path: path.name.startswith("."))
    assert other.name == "other"
    assert [(path / "half").stat().st_size for path in folders] == [4096], "it is in use"
    alive.communicate()
    assert alive.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k", "other"]


def test_a_folder_is_removed_after_an_error_and_stays_under_its_new_name(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "file").touch()
        raise ValueError("full")

    with pytest.raises(ValueError, match="full"), scratch_folder(tmp_path, "a") as folder:
        fail(folder)
    with scratch_folder(tmp_path, "a") as folder:
        folder.rename(tmp_path / "entry")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


@pytest.mark.parametrize("name", ["b", "b.site", "a.b"])
def test_folders_of_other_hosts_and_other_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The hosts share the folder, and locks may not work between them."""
    kept = [".k-1.0.a.12345678.scratch", ".whole-b", "b.12345678.scratch", ".k.b.1234567.scratch"]
    for each in kept:
        (tmp_path / each).mkdir()
    monkeypatch.setattr(scratch.socket, "gethostname", lambda: name)
    mine = tmp_path / f".k-1.0.{name.replace('.', '-')}.12345678.scratch"
    mine.mkdir()
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    remove_abandoned(tmp_path / "missing")
