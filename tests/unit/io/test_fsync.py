import os
from pathlib import Path

import pytest

from ftcluster_train.io.fsync import remove, write_atomically


def test_a_folder_that_is_removed_loses_its_name_before_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    (folder / "config.json").write_text("{}")
    seen: list[set[str]] = []

    def power_fails(*_: object, **__: object) -> None:
        seen.append({path.name for path in tmp_path.glob("checkpoint-*")})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", power_fails)
        with pytest.raises(KeyboardInterrupt):
            remove(folder)
    assert seen == [set()]  # no reader takes the remains for a checkpoint
    folder.mkdir()
    remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hostfile"
    path.write_text("10.0.0.1:1\n10.0.0.2:1\n")

    def power_fails(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", power_fails)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, "10.0.0.1:1\n")
    assert path.read_text() == "10.0.0.1:1\n10.0.0.2:1\n"
    write_atomically(path, "10.0.0.1:1\n")
    assert path.read_text() == "10.0.0.1:1\n"
    assert list(tmp_path.iterdir()) == [path]
