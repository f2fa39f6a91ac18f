"""The packages of a script's own requirements, chosen by the real pip from a folder of wheels."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    DownloadError,
    Pip,
    Target,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import Lists

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.ask import HostStack, common_stack
from ftcluster.launch.layer import LOCK, Layer, make_layer
from ftcluster.user_script.requirements import read_requirements
from tests.unit.shell import Said
from tests.unit.wheels import left, write_wheel

STACK = HostStack(
    "native-1",
    Target("3.11", "2.36", "x86_64"),
    {"torch": "2.13.0+cpu", "fsspec": "2026.9.0"},
    {"fsspec": ('aiohttp>=3; extra == "http"',)},
)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    write_wheel(folder, "tool", "1.0", "torch>=2", "other", "fsspec[http]")
    write_wheel(folder, "other", "2.0")
    write_wheel(folder, "aiohttp", "3.1")
    write_wheel(folder, "torch", "2.13.0")
    write_wheel(folder, "old", "1.0", "torch<2")
    write_wheel(folder, "deepspeed", "0.3.1.dev5")  # its releases are sources
    write_wheel(folder, "torchvision", "0.29.1", "torch>=2")
    write_wheel(folder, "torchaudio", "2.13.0+cpu", "torch>=2")
    return folder


@pytest.fixture
def layer(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What a file with this text gives."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.chdir(tmp_path)

    def make(text: str, stack: HostStack = STACK) -> Layer | None:
        Path("own.txt").write_text(text)
        requirements = read_requirements(Path("own.txt"))
        return make_layer(requirements, wheels, stack, tmp_path / "cache")

    return make


def test_what_the_stack_lacks_is_taken_once(
    layer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = layer("tool\n")
    assert first.packages == {"aiohttp": "3.1", "other": "2.0", "tool": "1.0"}
    assert first.has_module("tool.inner")
    assert not first.has_module("too")
    # what the hosts compare with
    wanted = Lists(first.folder / LOCK).wanted
    assert first.name == f"native-1-{wanted.digest}"
    assert wanted.problems(json.loads((first.folder / "wheels.json").read_text()) and {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in first.folder.glob("*.whl")
    }, "3.11") == []  # fmt: skip
    assert left(tmp_path / "cache") == [first.folder.name]

    def refuse(*_: object) -> None:
        raise AssertionError("pip is not needed")

    monkeypatch.setattr(Pip, "download_file", refuse)
    assert layer("# the same\ntool\n") == first
    with pytest.raises(AssertionError):
        layer("tool==1.0\n")


def test_what_is_asked_for_by_its_version(layer: Callable[..., Any]) -> None:
    assert layer("deepspeed==0.3.1.dev5\n").packages == {"deepspeed": "0.3.1.dev5"}
    assert layer("--pre\ndeepspeed\n").packages == {"deepspeed": "0.3.1.dev5"}
    assert layer("torchaudio\n").packages == {"torchaudio": "2.13.0+cpu"}
    # a file that asks for nothing new
    assert layer("torch>=2\n") is None
    assert layer("fsspec[tests]\n") is None


@pytest.mark.parametrize(
    "text", ["torch==2.0\n", "old\n", "none-such\n", "deepspeed\n", "torchvision\n"]
)
def test_why_packages_cannot_be_chosen(layer: Callable[..., Any], text: str, said: Said) -> None:
    with pytest.raises(FtclusterError) as caught:
        layer(text)
    assert isinstance(caught.value, UsageError) == text.startswith("torch=")
    said(caught.value)


def test_a_password_in_what_pip_says_is_not_shown(
    layer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DownloadError("no package at https://me:s3cret@mirror/simple")

    monkeypatch.setattr(Pip, "download_file", fail)
    with pytest.raises(FtclusterError, match=r"https://\*\*\*\*@mirror/simple") as caught:
        layer("tool\n")
    assert "s3cret" not in str(caught.value)


def test_hashes_of_the_file_hold(layer: Callable[..., Any], wheels: Path) -> None:
    digest = hashlib.sha256((wheels / "other-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    right = f"other==2.0 --hash=sha256:{'0' * 64} --hash=sha256:{digest}\n"
    assert layer(right).packages == {"other": "2.0"}
    with pytest.raises(FtclusterError, match=f"{digest}, which the file does not allow"):
        layer(f"other==2.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(FtclusterError, match=r"aiohttp==3\.1 has no --hash; with one of them"):
        layer(f"{right}aiohttp\n")


def described(**changes: Any) -> dict[str, Any]:
    extras = ["y ; extra == 'z'", "not one ]"]
    packages = [
        {"name": "Torch", "version": "2.13.0", "extras": []},
        {"name": "x", "version": "1", "extras": extras},
    ]
    document = {"stack": "native-1", "python": "3.11", "glibc": "2.36", "machine": "x86_64"}
    return {**document, "packages": packages, **changes}


def test_packages_are_for_the_oldest_c_library() -> None:
    found = common_stack({"a": described(), "b": described(glibc="2.4"), "c": described()})
    assert found.target == Target("3.11", "2.4", "x86_64")
    assert found.packages == {"torch": "2.13.0", "x": "1"}
    assert found.extras == {"x": ("y ; extra == 'z'",)}
    with pytest.raises(FtclusterError, match=r"differ in python: a has 3\.11, b has 3\.12"):
        common_stack({"a": described(), "b": described(python="3.12")})


@pytest.mark.parametrize(
    "changes",
    [
        {"glibc": "musl"},
        {"machine": "x 86"},
        {"packages": [{"name": "a\nb", "version": "1", "extras": []}]},
        {"packages": [{"name": "a", "version": "1\n2", "extras": []}]},
    ],
)
def test_an_answer_that_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"x|a|1"):
        common_stack({"a": described(**changes)})
