from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.bundle import open_bundle
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Sources, Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    Wheelhouse,
    WheelhouseError,
    check,
)

from ftcluster.cli.main import main
from ftcluster.errors import UsageError
from ftcluster.operations.setup import bundle as verb
from tests.unit.clusters import STACKS
from tests.unit.shell import Said, Shell
from tests.unit.wheels import write_wheel

Calls = list[tuple[Wanted, Target, Sources]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Record the requests to package indexes; each request returns one small wheel."""
    found: Calls = []
    write_wheel(tmp_path / "house", "tool", "1.0")

    def get_wheels(wanted: Wanted, target: Target, sources: Sources, _cache: Path) -> Wheelhouse:
        found.append((wanted, target, sources))
        tool = Wanted("tool", "tool==1.0", allow_unverified=True)
        wheels = check(tmp_path / "house", tool, "3.11")
        return Wheelhouse(tmp_path / "house", wheels, ("it is large",))

    monkeypatch.setattr(verb, "get_wheels", get_wheels)
    return found


def test_the_default_stack_for_the_usual_hosts(
    calls: Calls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle"]) == 0
    ((wanted, target, sources),) = calls
    assert (wanted.name, wanted.resolve) == ("native", False)
    assert wanted.more  # the CUDA packages, in case they are needed
    assert target == Target("3.11", "2.28", "x86_64")
    assert sources.index_url == ""
    assert sources.indexes.keys() == {"torch", "oneccl-bind-pt"}
    path = tmp_path / "native-py3.11.ftbundle"
    opened = open_bundle(path, tmp_path / "opened")
    assert (opened.stack, opened.target) == ("native", target)
    assert opened.digest == wanted.digest
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "note: it is large"
    assert out[2].endswith(f"ftcluster setup INVENTORY --bundle {path.name}")


def test_options_of_the_download(calls: Calls, tmp_path: Path) -> None:
    words = [
        "--stack", "intel-2.8", "-o", "a/b.ftbundle", "--python", "3.12", "--glibc", "2.36",
        "--index-url", "https://mirror/simple", "--find-links", "x", "--find-links", "y",
    ]  # fmt: skip
    assert main(["bundle", *words]) == 0
    ((wanted, target, sources),) = calls
    assert wanted.name == "intel-2.8"
    assert target == Target("3.12", "2.36", "x86_64")
    assert (sources.index_url, sources.find_links) == ("https://mirror/simple", ("x", "y"))
    assert (tmp_path / "a" / "b.ftbundle").is_file()
    # pip resolves a stack that is only documented
    assert main(["bundle", "--stack", "intel-2.6", "--allow-unverified"]) == 0
    wanted = calls[1][0]
    assert wanted.resolve
    assert wanted.allow_unverified
    assert "torch==2.6.0\n" in wanted.lock
    assert "uv==" in wanted.lock


def test_json(calls: Calls, tmp_path: Path, shell: Shell) -> None:
    document = shell("bundle --json -o my.ftbundle").document
    assert document["seconds"] >= 0
    del document["seconds"]
    path = tmp_path / "my.ftbundle"
    assert document == {
        "state": "done", "bundle": str(path), "stack": "native", "python": "3.11",
        "glibc": "2.28", "machine": "x86_64", "packages": 1, "bytes": path.stat().st_size,
        "notices": ["it is large"],
    }  # fmt: skip
    assert len(calls) == 1


WRONG = """
native
--stack nativ
--stack auto
--python 3
--python 3.11.2
--glibc glibc2.36
--python 3.9
--python 2.11
--python 3.15
--stack intel-2.6 --python 3.9
--stack intel-1.9 --python 3.7
-o .
"""


def test_wrong_usage_is_2_and_downloads_nothing(
    calls: Calls, capsys: pytest.CaptureFixture[str], said: Said
) -> None:
    messages = []
    for words in WRONG.split("\n")[1:-1]:
        assert main(["bundle", *words.split()]) == 2, words
        captured = capsys.readouterr()
        assert captured.out == ""
        messages.append(captured.err)
    assert calls == []
    said("".join(messages))


def test_yanked_releases_need_an_option(calls: Calls, shell: Shell) -> None:
    captured = shell("bundle --stack intel-2.5", 1)
    assert "intel_extension_for_pytorch 2.5.0" in captured.err
    assert "--allow-yanked" in captured.err
    assert calls == []
    words = ["--stack", "intel-2.5", "--allow-yanked", "--allow-unverified"]
    assert main(["bundle", *words]) == 0
    assert len(calls) == 1


@pytest.mark.parametrize("stack", ["intel-2.7", "intel-2.6"])
def test_packages_without_a_hash_need_an_option(stack: str, calls: Calls, shell: Shell) -> None:
    assert "--allow-unverified" in shell(["bundle", "--stack", stack], 1).err
    assert calls == []
    assert main(["bundle", "--stack", stack, "--allow-unverified"]) == 0


def test_a_failed_download_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: Shell
) -> None:
    def refuse(*_: object) -> None:
        raise WheelhouseError("native: no index answers")

    monkeypatch.setattr(verb, "get_wheels", refuse)
    assert shell("bundle --json", 1).document["error"] == "native: no index answers"
    assert not list(tmp_path.glob("*.ftbundle"))


def test_a_folder_that_cannot_be_written_is_named(
    calls: Calls, tmp_path: Path, shell: Shell
) -> None:
    (tmp_path / "file").touch()
    assert shell("bundle -o file/my.ftbundle", 1).err.startswith("error: file: ")
    assert len(calls) == 1


@pytest.mark.parametrize("stack", STACKS.values(), ids=list(STACKS))
def test_what_setup_can_install_can_be_bundled(stack: Any) -> None:
    for python in stack.host_python or ():
        assert verb.read_target(python, "2.28", stack) == Target(python, "2.28", "x86_64")
    if not stack.host_python:
        with pytest.raises(UsageError):
            verb.read_target(stack.python[1], "2.28", stack)
