"""`fetch --push`: errors before a copy, the question, and the program that uploads.

Nothing here connects to the Hub, so a real upload is not tested.
"""

from pathlib import Path

import pytest

from ftcluster.cli import fetch
from ftcluster.operations.result import Result
from tests.unit.shell import Shell

SECRET = "hf_s3cret"
PROGRAM = """#!/bin/sh
printf '%s\\n' "$@" > "$HOME/argv"
[ -z "$FAILS" ] || { echo "403 Forbidden" >&2; exit 1; }
"""


@pytest.fixture(autouse=True)
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the runs copied to `my-model`; `hf` is a program that writes its arguments."""
    runs: list[str] = []

    def copy(_connection: object, run: str, *_: object) -> Result:
        runs.append(run)
        model = str(tmp_path / "my-model")
        return Result({"state": "done", "run": run, "model": model}, (f"model: {model}",))

    program = tmp_path / "bin/hf"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for name, value in {"HOME": tmp_path, "HF_TOKEN": SECRET}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    monkeypatch.setattr(fetch, "fetch", copy)
    return runs


def test_it_is_uploaded_private_and_without_rows(shell: Shell, tmp_path: Path) -> None:
    found = shell("fetch mrpc-1 my-model --push me/mrpc --yes --json").document
    assert found["pushed"] == "me/mrpc"
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv[:4] == ["upload", "me/mrpc", str(tmp_path / "my-model"), "."]
    assert "--private" in argv
    assert argv[argv.index("--exclude") + 1] == "ftcluster.rows"
    assert SECRET not in " ".join(argv)
    shell("fetch mrpc-1 my-model --push me/mrpc --yes --public")
    assert "--no-private" in (tmp_path / "argv").read_text().splitlines()


@pytest.mark.parametrize(
    ("words", "left_out", "said"),
    [
        ("--push mrpc", "", "OWNER/NAME"),
        ("--push --yes", "", "--push"),
        ("--public", "", "--push OWNER/NAME"),
        ("--push me/mrpc --yes --reports", "", "--push uploads only models"),
        ("--push me/mrpc", "HF_TOKEN", "--push: HF_TOKEN is not set"),
        ("--push me/mrpc", "PATH", "not on PATH"),
    ],
)
def test_what_is_refused_before_anything_is_copied(
    shell: Shell, copied: list[str], monkeypatch: pytest.MonkeyPatch, words: str, left_out: str,
    said: str,
) -> None:  # fmt: skip
    if left_out:
        monkeypatch.setenv(left_out, "")
    assert said in shell(f"fetch mrpc-1 {words}", 2).err
    assert copied == []


def test_the_files_of_a_script_are_not_uploaded_and_neither_is_the_current_folder(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = {"state": "done", "run": "run-1", "model": "", "folder": str(tmp_path / "run-1")}
    monkeypatch.setattr(fetch, "fetch", lambda *_: Result(script, ()))
    assert "not uploaded" in shell("fetch run-1 --push me/mrpc --yes", 2).err
    assert not (tmp_path / "argv").exists()


def test_nobody_is_asked_without_a_terminal(shell: Shell, tmp_path: Path) -> None:
    assert "--yes uploads without asking" in shell("fetch mrpc-1 --push me/mrpc", 2).err
    assert not (tmp_path / "argv").exists()


def test_what_the_program_says_is_the_error(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "1")
    assert "403 Forbidden" in shell("fetch mrpc-1 --push me/mrpc --yes", 1).err
