"""A head that lies while its runs are listed, followed and fetched, with its own programs.

The commands and Ansible's connection are real. The programs that the commands call on the head are
an attacker's: the output of `find`, `stat` and `tail` is invented.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.action import follow, pull
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.answers import MARK

from ftcluster.launch.record import events_file
from ftcluster_common.protocol.run_state import pack
from tests.unit.cli.test_hostile_head import ROW, RUN, Head, head
from tests.unit.plugins.test_pull import action_of, lying
from tests.unit.shell import Shell

__all__ = ["head"]  # the fixture
ABC = hashlib.sha256(b"abc").hexdigest()
END = {"event": "end", "time": 9.0, "state": "done", "exit_code": 0, "seconds": 2.0}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put an attacker's program before the head's own programs."""
    folder = tmp_path / "prefix/evil"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, script: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


def refused(shell: Shell, command: list[str]) -> str:
    """Return the error of a command that fails with a few harmless lines."""
    said = shell(command, 1).err
    assert said.count("error:") == 1
    assert "Traceback" not in said
    assert len(said) < 3000
    assert not {"\x1b", "\x07", "\u202e"} & set(said)
    return said


def test_what_is_fetched_writes_nothing_elsewhere(
    head: Head, programs: Callable[[str, str], None], shell: Shell, tmp_path: Path
) -> None:
    """If one file of a listing is refused, all are refused and no file remains."""
    model = f"{head.run_dir}/it's $(touch {tmp_path}/outside/run); `touch {tmp_path}/outside/run`"
    head.answers(list={"runs": pack([{**ROW, "state": "done", "model": model}]), "left": 0})
    Path(model).mkdir(parents=True)
    (Path(model) / "good").write_text("abc")
    (Path(model) / "link").symlink_to(tmp_path / "outside/kept")
    shell(["fetch", RUN, "honest"])
    assert [path.name for path in Path("honest").iterdir()] == ["good"]
    programs("find", f"printf '3 %s %s\\n' {ABC} ./good {ABC} './../../out\x1b]52;c;eA==\x07'")
    before = head.snapshot()
    assert "the host lists a name that is not a file" in refused(shell, ["fetch", RUN, "copy"])
    assert head.snapshot() == before
    programs("find", f"printf '3 %s %s\\n' {ABC} ./good")
    programs("tail", "printf abd")  # another file than was listed, as after a swapped link
    assert "changed while it was copied" in refused(shell, ["fetch", RUN, "copy"])
    assert not Path("copy").exists()
    assert [one.name for one in (tmp_path / "outside").iterdir()] == ["kept"]


def test_what_is_followed_fills_no_disk(
    head: Head, programs: Callable[[str, str], None], shell: Shell
) -> None:
    """A file claims to be huge, and contains zeros wherever it is read."""
    (head.run_dir / "events.jsonl").write_text("x")
    programs("tail", "exec cat /dev/zero")
    for told, words in (
        (f"1-2 {10**18 - 1}", f"reports {10**18 - 1:,} bytes"),
        ("1-2 1e9", "the host's response is invalid"),
    ):
        programs("stat", f"echo '{told}'")
        assert words in refused(shell, ["attach", RUN])
        assert not events_file(RUN).exists() or events_file(RUN).stat().st_size < 1 << 20


def test_events_that_grow_and_are_another_runs(head: Head, shell: Shell, tmp_path: Path) -> None:
    """Events are written while they are followed: without line ends, of other runs, then a link."""
    events = head.run_dir / "events.jsonl"
    events.write_text("")
    (head.run_dir / "supervisor.pid").write_text(str(os.getpid()))
    (tmp_path / "prefix/private").write_text("secret of the head\n")

    def write() -> None:
        with events.open("ab") as file:
            for _ in range(8):  # no line has a line end
                file.write(b"x" * (1 << 20))
                file.flush()
                time.sleep(0.05)
            for kind in ("step", "end"):
                other = {**END, "event": kind, "run": "../../outside", "model": ["x"], "step": "9"}
                file.write(b"\n" + json.dumps({**other, "time": 1e300}).encode())
            file.write(b"\n" + json.dumps({**END, "run": "../../outside"}).encode() + b"\n")

    writer = threading.Thread(target=write)
    writer.start()
    before = {path for path in head.snapshot() if str(tmp_path / "state") not in path}
    out, err = shell(["attach", RUN])[:2]
    writer.join()
    assert "is damaged; it and" in out + err
    assert len(out + err) < 3000
    assert before == {path for path in head.snapshot() if str(tmp_path / "state") not in path}
    assert events_file(RUN).stat().st_size < 9 << 20


@pytest.mark.parametrize("row", [{"run": "../../outside"}, {"steps": 10**400, "hosts": [1]}])
def test_a_list_of_runs_with_wrong_types(row: dict[str, Any], head: Head, shell: Shell) -> None:
    head.answers(list={"runs": pack([ROW, {**ROW, **row}]), "left": 0})
    before = head.snapshot()
    assert "localhost" in refused(shell, ["ps"])
    assert head.snapshot() == before


def test_a_link_that_is_swapped_in_while_copying_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    (tmp_path / "kept").write_text("kept")
    honest = lying(f"3 {ABC} ./a\n3 {ABC} ./b\n")

    def swaps(command: str) -> str:
        partial = tmp_path / ".copy.partial"
        if "tell piece" in command and not (partial / "b").is_symlink():
            (partial / "b").symlink_to(tmp_path / "kept")
        return honest(command)

    action = action_of(pull, swaps, path="/m", destination=str(tmp_path / "copy"))
    with pytest.raises(AnsibleActionFail, match="File exists"):
        action.run()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "kept"


def test_last_words_of_a_run_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(follow, "GONE_SECONDS", -1.0)

    def answer(command: str) -> str:
        return "x" * (5 << 20) if "supervisor.log" in command else f"{MARK} gone 0 0 0\n"

    action = action_of(follow, answer, run_dir="/r", destination=str(tmp_path / "e"))
    with pytest.raises(AnsibleActionFail) as caught:
        action.run()
    assert len(str(caught.value)) < 10_000
