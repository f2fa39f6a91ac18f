"""Commands whose output is not read, and the JSON documents of failures."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcluster.cli import main
from ftcluster.errors import FtclusterError
from ftcluster.operations.setup import hosts
from tests.programs import ROOT

COMMAND = [
    sys.executable, "-c", "import sys; from ftcluster.cli.main import main; sys.exit(main())"
]  # fmt: skip
RESULT, ERROR = ("stacks", "--json"), ("plan", "--json")  # no cluster has been set up
LISTS = ("stacks",)
PROGRESS = "from ftcluster.progress.view import make_view; make_view(True).say('1'); print('done')"


def environment(tmp_path: Path) -> dict[str, str]:
    paths = os.environ.get("FTCLUSTER_RUNNER") or f"{ROOT / 'runner'}:{ROOT / 'common'}"
    return {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": paths,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }  # fmt: skip


def run(tmp_path: Path, *words: str, **streams: Any) -> "subprocess.CompletedProcess[str]":
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(
        [*COMMAND, *words], env=environment(tmp_path), cwd=tmp_path, text=True, check=False,
        timeout=60, **given,
    )  # fmt: skip


@pytest.fixture
def unread() -> Any:
    """Return a pipe whose reader has closed it."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (RESULT, 141), (LISTS, 141), (("stop", "--help"), 141), (("--version",), 141),
        ((), 2), (ERROR, 1),
    ],
)  # fmt: skip
def test_a_result_that_nobody_reads_ends_quietly(
    tmp_path: Path, unread: int, words: tuple[str, ...], code: int
) -> None:
    done = run(tmp_path, *words, stdout=unread)
    assert done.returncode == code
    assert "Broken" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") == (words == ERROR)


@pytest.mark.parametrize("closed", [False, True])
def test_errors_that_nobody_reads_change_no_result(
    tmp_path: Path, unread: int, closed: bool
) -> None:
    streams: dict[str, Any] = {"stderr": unread}
    if closed:  # 2>&-
        streams = {"stderr": None, "preexec_fn": lambda: os.close(2)}
    done = run(tmp_path, *ERROR, **streams)
    assert done.returncode == 1
    assert json.loads(done.stdout)["state"] == "failed"


def test_progress_that_nobody_reads_does_not_end_a_command(tmp_path: Path, unread: int) -> None:
    code = (
        "import sys; from ftcluster.text.streams import standard_streams as streams\n"
        f"with streams(): {PROGRESS}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), stdout=subprocess.PIPE,
        stderr=unread, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n")


@pytest.mark.parametrize("words", [RESULT, ("--version",)])
def test_a_full_disk_is_one_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(tmp_path, *words, stdout=full)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("No space left on device")


@pytest.mark.parametrize(
    ("raised", "code", "error"),
    [
        (FtclusterError("no"), 1, "no"),
        (PermissionError(13, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_each_way_to_fail_has_one_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    raised: BaseException, code: int, error: str,
) -> None:  # fmt: skip
    def fails() -> None:
        raise raised

    monkeypatch.setattr(hosts, "recall", fails)
    assert main.main(["hosts", "--json"]) == code
    written = capsys.readouterr()
    assert json.loads(written.out)["error"] == error
    assert error in written.err


def test_a_mistake_of_ours_has_a_document_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "recall", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main.main(["hosts", "--json"])
    assert json.loads(capsys.readouterr().out)["error"].startswith("ZeroDivisionError")
