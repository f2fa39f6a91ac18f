"""The packages of a script's own requirements, chosen by the real pip from a folder."""

import hashlib
import json
import platform
import sys
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
from ftcluster.launch.source_build import unsuited
from ftcluster.user_script.requirements import read_requirements
from tests.unit.wheels import left, write_sources, write_wheel

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
    write_wheel(folder, "deepspeed", "0.3.1.dev5")  # its releases exist only as sources
    write_wheel(folder, "torchvision", "0.29.1", "torch>=2")
    write_wheel(folder, "torchaudio", "2.13.0+cpu", "torch>=2")
    return folder


@pytest.fixture
def layer(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the overlay for a requirements file with this text."""
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
    # the versions that the hosts compare with
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
    # pip takes it because there is no other version
    alone = layer("deepspeed\n")
    assert alone.packages == {"deepspeed": "0.3.1.dev5"}
    assert [note.partition(", like")[0] for note in alone.notes] == [
        "deepspeed 0.3.1.dev5 is a pre-release"
    ]
    assert layer("torchaudio\n").packages == {"torchaudio": "2.13.0+cpu"}


def test_a_file_that_asks_for_nothing_new(layer: Callable[..., Any]) -> None:
    assert layer("torch>=2\n") is None
    assert layer("fsspec[tests]\n") is None


@pytest.mark.parametrize(
    "text",
    ["torch==2.0\n", "old\n", "none-such\n", "torchvision\n"],
)
def test_why_packages_cannot_be_chosen(
    layer: Callable[..., Any], text: str, said: Callable[[object], None]
) -> None:
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
    with pytest.raises(FtclusterError, match=r"aiohttp==3\.1 has no --hash; if one requirement"):
        layer(f"{right}aiohttp\n")


@pytest.fixture
def from_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Layer]:
    """Return the overlay of a file whose packages come from the folder "index", with sources."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    index = tmp_path / "index"
    write_wheel(index, "tool", "2.0", "builds==1.*")
    write_wheel(index, "tool", "1.0")
    write_wheel(index, "builds", "2.0")
    write_sources(index, "builds", "1.5")
    write_wheel(index, "deepspeed", "0.3.1.dev5")
    write_sources(index, "deepspeed", "0.19.8", before="import torch")

    def make(text: str) -> Layer:
        Path("own.txt").write_text(f"--no-index\n-f {index}\n{text}")
        found = make_layer(read_requirements(Path("own.txt")), None, STACK, tmp_path / "cache")
        assert found
        return found

    return make


def test_what_has_no_wheel_is_built_instead_of_an_older_version(
    from_index: Callable[[str], Layer],
) -> None:
    built = from_index("tool\n")
    assert built.packages == {"builds": "1.5", "tool": "2.0"}
    assert built.notes == ("builds 1.5 was built here from its sources",)
    wheels = from_index("tool\n--only-binary :all:\n")
    assert wheels.packages == {"tool": "1.0"}
    assert wheels.notes[0].startswith("builds==1.* exists only as sources")
    assert wheels.notes[1].startswith("tool 1.0 is not the newest matching version, 2.0: ")


def test_a_pre_release_that_a_package_pins_is_taken(
    from_index: Callable[[str], Layer], tmp_path: Path
) -> None:
    """opentelemetry's packages pin their betas, for which there are sources too."""
    index = tmp_path / "index"
    write_wheel(index, "telemetry", "1.45", "conventions==0.66b2")
    write_wheel(index, "conventions", "0.66b2")
    write_sources(index, "conventions", "0.66b2")
    write_sources(index, "conventions", "0.1")
    made = from_index("telemetry\n")
    assert made.packages == {"conventions": "0.66b2", "telemetry": "1.45"}
    assert made.notes == ()


@pytest.mark.parametrize(
    ("newer", "text", "noted"),
    [
        (
            "sources",
            "aged\n",
            "aged 1.0 is not the newest matching version, 2.0: it exists",
        ),
        ("sources", "aged<2\n", ""),
        ("sources", "aged\n--constraint limits.txt\n", ""),
        ("pre-release", "aged\n", ""),
        ("conflict", "aged\ntool\n", "aged 1.0 is not the newest matching version, 2.0: 2.0 con"),
    ],
)
def test_an_older_version_is_not_taken_silently(
    from_index: Callable[[str], Layer], tmp_path: Path, newer: str, text: str, noted: str
) -> None:
    index = tmp_path / "index"
    (tmp_path / "limits.txt").write_text("aged<2\n")
    write_wheel(index, "aged", "1.0")
    if newer == "sources":
        write_sources(index, "aged", "2.0")
    elif newer == "pre-release":
        write_wheel(index, "aged", "2.0rc1")
    else:
        write_wheel(index, "aged", "2.0", "tool<1")
    notes = [note for note in from_index(text).notes if "built here" not in note]
    assert [note[: len(noted)] for note in notes] == ([noted] if noted else [])


def test_a_pip_that_does_not_report_sources_is_refused(
    from_index: Callable[[str], Layer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12's pip 23.0.1 chose hydra-core 0.11.3 of 2019 instead of 1.3."""
    old = tmp_path / "python"
    old.write_text(
        f'#!/bin/sh\n[ "$4" != --version ] || exec echo pip 23.0.1 from /usr/lib/python3\n'
        f'exec {sys.executable} "$@"\n'
    )
    old.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(old))
    with pytest.raises(FtclusterError, match=r"pip 23\.1 or newer, but this is 23\.0\.1") as caught:
        from_index("tool\n")
    assert f"{old} -I -m pip install --upgrade 'pip>=23.1'" in caught.value.hint
    assert from_index("tool\n--only-binary :all:\n").packages == {"tool": "1.0"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("deepspeed\n", r"from sources failed:(.|\n)*No module named 'torch'\n  build all"),
        (f"builds==1.5 --hash=sha256:{'0' * 64}\n", r"Expected sha256 0{64}\s+Got"),
    ],
)
def test_why_sources_are_not_built(from_index: Callable[[str], Layer], text: str, why: str) -> None:
    with pytest.raises(FtclusterError, match=why):
        from_index(text)


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        ("py3-none-any", ""),
        ("cp311-cp311-linux_x86_64", ""),
        ("cp38-abi3-linux_x86_64", ""),
        ("cp312-cp312-linux_x86_64", "is not for the hosts' Python 3.11"),
    ],
)
def test_hosts_that_a_wheel_built_here_is_for(
    tag: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert unsuited(f"a-1.0-{tag}.whl", STACK.target) == why
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.41"))
    newer = unsuited(f"a-1.0-{tag}.whl", STACK.target)
    glibc = "contains code for glibc 2.41, but hosts have glibc 2.36"
    assert newer == (why or glibc * ("any" not in tag))


@pytest.mark.needs("index")
def test_hydra_core_is_not_that_of_2019(tmp_path: Path) -> None:
    """The newest version needs antlr4-python3-runtime 4.9, which exists only as a source."""
    (tmp_path / "own.txt").write_text("hydra-core\n")
    made = make_layer(read_requirements(tmp_path / "own.txt"), None, STACK, tmp_path / "cache")
    assert made
    assert made.packages["hydra-core"] >= "1.3"
    assert made.packages["antlr4-python3-runtime"].startswith("4.9.")


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


def test_hosts_that_differ_are_named() -> None:
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
