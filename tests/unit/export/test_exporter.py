"""The environment of an exporter, which pip makes from the wheels in a lock."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from ftcluster.errors import FtclusterError
from ftcluster.export import exporter
from ftcluster.progress.view import View
from tests.unit.wheels import write_wheel


class Said(View):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(exporter, "FOLDER", tmp_path)
    write_wheel(tmp_path / "wheels", "other", "1.0")
    return write_wheel(tmp_path / "wheels", "tool", "1.0", "other")


def write_lock(folder: Path, digest: str) -> None:
    (folder / "onnx.txt").write_text(f"tool==1.0 \\\n    --hash=sha256:{digest}\n")


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*") if not path.name.startswith("."))


def test_the_environment_is_made_of_the_lock_and_no_more(wheel: Path, tmp_path: Path) -> None:
    write_lock(tmp_path, hashlib.sha256(wheel.read_bytes()).hexdigest())
    said = Said()
    python = exporter.environment("onnx", said)
    code = "import tool, importlib.util as u; print(tool.__version__, u.find_spec('other'))"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1.0 None\n"
    assert left(tmp_path / "cache/ftcluster/wheels") == []
    assert exporter.environment("onnx", said) == python
    assert len(said.lines) == 1


def test_another_file_than_the_locks_is_refused(wheel: Path, tmp_path: Path) -> None:
    write_lock(tmp_path, hashlib.sha256(b"another").hexdigest())
    with pytest.raises(FtclusterError, match=f"the SHA-256 of {wheel.name}") as raised:
        exporter.environment("onnx", Said())
    assert "pip config list" in raised.value.hint
    wheel.unlink()
    with pytest.raises(FtclusterError, match=r"tool==1\.0") as raised:
        exporter.environment("onnx", Said())
    assert "host" not in str(raised.value)
    assert left(tmp_path / "cache/ftcluster/exporters") == []
