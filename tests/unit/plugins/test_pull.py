"""Files from a host to the control node, with limits for pieces, names and sizes."""

import base64
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.action import follow, pull
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hosts import Action, as_run

DIGEST = hashlib.sha256(b"abc").hexdigest()


@pytest.fixture(autouse=True)
def no_ansible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})


def action_of(module: Any, host: Callable[[str], str] | None, **arguments: str) -> Any:
    """Return a plugin whose host is this machine, or responds as a function says."""
    action = module.ActionModule.__new__(module.ActionModule)
    action._task = SimpleNamespace(args=arguments)

    def execute(command: str, sudoable: bool, in_data: bytes) -> dict[str, Any]:
        if host is None:
            return Action()._low_level_execute_command(command, sudoable, in_data)
        return {"rc": 0, "stdout": host(as_run(command))}

    action._low_level_execute_command = execute
    return action


def lying(listing: str, piece: bytes = b"abc") -> Callable[[str], str]:
    """Return a host that lists these files, and sends the same piece for every request."""

    def answer(command: str) -> str:
        if "tell files" in command:
            return f"{MARK} files\n{listing}"
        return f"{MARK} piece\n{base64.b64encode(piece).decode()}"

    return answer


def test_a_folder_is_copied_without_links_and_pipes(tmp_path: Path) -> None:
    source, copy = tmp_path / "s", tmp_path / "copy"
    (source / "sub").mkdir(parents=True)
    (source / "a b").write_bytes(b"x" * 100)
    (source / "sub/empty").touch()
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    action_of(pull, None, path=str(source), destination=str(copy)).run()
    assert {str(path.relative_to(copy)) for path in copy.rglob("*")} == {"a b", "sub", "sub/empty"}
    assert (copy / "a b").read_bytes() == b"x" * 100


def test_what_was_written_since_a_file(tmp_path: Path) -> None:
    source, copy = tmp_path / "s", tmp_path / "copy"
    (source / "out/__pycache__").mkdir(parents=True)
    for number, name in enumerate(
        ("train.py", "data.csv", "../started", "out/model", "data.csv", "out/__pycache__/a.pyc")
    ):
        (source / name).write_text(str(number))
        os.utime(source / name, (1000 + number, 1000 + number))
    newer = str(tmp_path / "started")
    action_of(pull, None, path=str(source), destination=str(copy), newer=newer).run()
    files = {str(one.relative_to(copy)) for one in copy.rglob("*") if one.is_file()}
    assert files == {"data.csv", "out/model"}


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        (f"3 {DIGEST} ./../x\n", "lists a name that is not a file"),
        (f"3 {DIGEST} ./a/../../x\n", "lists a name that is not a file"),
        (f"3 {DIGEST} .//etc/x\n", "lists a name that is not a file"),
        (f"3 {DIGEST} /etc/x\n", "lists a name that is not a file"),
        (f"3 {DIGEST} ./a\x1b[2J\n", "lists a name that is not a file"),
        (f"3 {DIGEST} ./a\0b\n", "lists a name that is not a file"),
        (f"3 {DIGEST} ./{'x' * 300}\n", "lists a name that is not a file"),
        (f"3 {DIGEST} ./{'x/' * 2000}x\n", "lists a name that is not a file"),
        (f"{'9' * 16} {DIGEST} ./a\n", "lists a name that is not a file"),
        (f"-1 {DIGEST} ./a\n", "lists a name that is not a file"),
        ("3 abc ./a\n", "lists a name that is not a file"),
        (f"3 {DIGEST} ./a\n3 {DIGEST} ./a\n", "twice"),
        (f"3 {DIGEST} ./a\n3 {DIGEST} ./a/b\n", "as a folder"),
        ("".join(f"3 {DIGEST} ./{number}\n" for number in range(10_001)), "more than 10000 files"),
        (f"{'9' * 15} {DIGEST} ./a\n", "free"),
        (f"{2 << 30} {DIGEST} ./a\n" * 1 + f"{'9' * 14} {DIGEST} ./b\n", "free"),
        (f"2 {DIGEST} ./a\n", "more bytes of .* than it listed"),
        (f"9 {DIGEST} ./a\n", "changed while it was copied"),
        ("", "has no files"),
    ],
)
def test_what_a_host_lists_is_refused_and_nothing_is_left(
    listing: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    action = action_of(
        pull, lying(listing), path="/runs/r/model", destination=str(tmp_path / "here/copy")
    )
    with pytest.raises(AnsibleActionFail, match=words) as caught:
        action.run()
    assert len(str(caught.value)) < 500
    assert [str(path) for path in tmp_path.rglob("*")] == [str(tmp_path / "here")]


@given(st.text(max_size=20) | st.text("./\\\n\0a", max_size=8))
def test_a_name_that_is_taken_stays_in_its_folder(name: str) -> None:
    if pull.is_file_name(name):
        path = Path(os.path.normpath(f"/folder/{name}"))
        assert path.is_relative_to("/folder")
        assert str(path) == f"/folder/{name}"
        assert name.isprintable() or name.encode()


def test_a_poll_takes_no_more_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PIECE_BYTES", 100)
    run, copy = tmp_path / "run", tmp_path / "copy"
    run.mkdir()
    text = b"x" * 250 + b"\n" + b"\xff\xfe no UTF-8\n" + b'[1]\n{"event": "end", "time": 1}\n'
    (run / "events.jsonl").write_bytes(text)
    arguments = {"run_dir": str(run), "destination": str(copy)}
    action = action_of(follow, None, **arguments)
    action._low_level_execute_command = lambda command, **_: {  # as Ansible decodes output
        "stdout": subprocess.run(
            command, shell=True, stdout=subprocess.PIPE, check=True
        ).stdout.decode(errors="surrogateescape")
    }
    assert action.run()["end"] == {"event": "end", "time": 1}
    assert copy.read_bytes() == text
    (run / "ranks.log").write_bytes(text)
    log = action_of(follow, None, **{**arguments, "file": "ranks.log", "once": "true"})
    log._low_level_execute_command = action._low_level_execute_command
    copy.unlink()
    log.run()
    assert copy.read_bytes() == text
    greedy = action_of(
        follow, lambda _: f"{MARK} alive 7 {len(text)} 999\n{'x' * 101}", **arguments
    )
    with pytest.raises(AnsibleActionFail, match="sent more bytes than requested"):
        greedy.run()


def test_nothing_is_copied_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 << 20))
    arguments = {"run_dir": "/r", "destination": str(tmp_path / "copy")}

    def answer(command: str) -> str:
        files = command.count("exec")
        return f"{MARK} alive{' 7 0 2' * files}\n" + "x\n" * files

    for file in ("events.jsonl", "ranks.log"):
        action = action_of(follow, answer, **{**arguments, "file": file})
        with pytest.raises(AnsibleActionFail, match="MiB free"):
            action.run()
    assert list(tmp_path.iterdir()) == []
