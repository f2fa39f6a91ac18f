"""Events that the head writes into events.jsonl, and their text on a terminal."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster.ansible.playbook import read_event
from ftcluster.launch import events as module
from ftcluster.launch.events import EventReader, read_event_line
from ftcluster.progress.state import RunProgress
from ftcluster.report.history import history_of
from ftcluster.text.printable import printable

ESCAPES = "a\x1b[2J\x07\x9b31m\r\nb\rc\td\x7f\u202efdp\u2028"
SHOWN = "a\\x1b[2J\\x07\\x9b31m\nb\\x0dc\td\\x7f\\u202efdp\\u2028"


STEP = {
    "event": "step", "time": 1.0, "step": 1, "epoch": 0.5, "loss": 1.0, "grad_norm": 1.0,
    "learning_rate": 0, "samples_per_second": 1.0, "train_seconds": 1, "remaining_seconds": 0.0,
}  # fmt: skip
END = b'{"event": "end", "time": 3.5, "state": "done", "exit_code": 0, "seconds": 2.5}'
DAMAGED = [
    b"no json", b"[]", b"null", b"{}", b'{"event": []}', b'{"event": "step"}', b"[" * 100_000,
    b'{"event": "end", "time": 1, "state": {}, "exit_code": 0, "seconds": 1}',
    b'{"event": "end", "time": 1, "state": "done", "exit_code": 0, "seconds": true}',
    b'{"event": "end", "time": 1, "state": "done", "exit_code": 0, "seconds": 1e999}',
    b'{"event": "end", "time": 1, "state": "done", "exit_code": 0}',
    b'{"event": "end", "state": "done", "exit_code": 0, "seconds": 1}',
    b'{"event": "end", "time": "1", "state": "done", "exit_code": 0, "seconds": 1}',
    b'{"event": "end", "time": NaN, "state": "done", "exit_code": 0, "seconds": 1}',
    b'{"event": "end", "time": 1e300, "state": "done", "exit_code": 0, "seconds": 1}',
    b'{"event": "error", "time": 1, "message": "x", "hint": "", "host": "a", "rank": "{{ 1 }}"}',
    b'{"event": "evaluation", "time": 1, "step": 1, "epoch": 1, "seconds": 1, "metrics": 1}',
    b'{"event": "notice", "time": 1, "message": "\xff\xfe"}', END[:-9],
    b'{"event": "later", "time": 1, "x": ' + b"1" * 5000 + b"}",
    b'{"event": "later", "time": 1, "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"event": "placement", "time": 1, "ranks": [{"rank": 0}]}',
    b'{"event": "placement", "time": 1, "ranks": [1]}',
    b'{"event": "kernels", "time": 1, "used": [{}]}',
    json.dumps({**STEP, "step": 10**300}).encode(),
    json.dumps({**STEP, "remaining_seconds": float("inf")}).encode(),
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_hides_no_other_and_is_named_once(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        json.dumps(STEP).encode() + b"\n" + line + b"\n" + line + b"\n\n" + END + b"\n"
    )
    found = EventReader(path).new_events()
    assert [event["event"] for event in found] == ["step", "notice", "end"]
    assert "line 2 of events.jsonl" in found[1]["message"]
    assert len(found[1]["message"]) < 600
    assert len(found[1]["message"].splitlines()) == 1
    progress = RunProgress("r")
    for event in found:
        progress.add(event)
    assert progress.ended
    assert history_of(found).end["state"] == "done"


def test_a_line_is_an_event_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(END)
    reader = EventReader(path)
    assert reader.new_events() == []
    with path.open("ab") as file:
        file.write(b"\n")
    assert [event["event"] for event in reader.new_events()] == ["end"]


def test_a_line_without_an_end_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * 450)
    reader = EventReader(path)
    assert reader.new_events() == []
    assert reader.offset >= 400
    with path.open("ab") as file:
        file.write(b"x" * 450 + b"\n" + END + b"\n")
    assert [event["event"] for event in reader.new_events()] == ["notice", "end"]


@given(st.binary(max_size=300), st.integers(0, 300))
def test_whatever_bytes_come_the_end_is_found(data: bytes, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(data[:cut])
        reader = EventReader(path)
        before = reader.new_events()
        path.write_bytes(data + b"\n" + END + b"\n")
        assert [*before, *reader.new_events()][-1]["event"] == "end"


def test_kinds_of_a_later_version_are_passed_on() -> None:
    later = {"event": "later", "time": 1, "x": [1]}
    assert read_event_line(json.dumps(later).encode()) == later
    # a loss that is NaN or infinite
    line = json.dumps({**STEP, "loss": float("nan"), "grad_norm": float("inf")})
    found = read_event_line(line.encode())
    assert found
    assert str(found["loss"]) == "nan"
    # the output of a user's script is unchanged
    output = {
        "event": "output",
        "time": 1,
        "rank": 0,
        "stream": "stdout",
        "text": "50 %\r\x1b[1mdone",
    }
    assert read_event_line(json.dumps(output).encode()) == output


def test_no_terminal_obeys_a_host() -> None:
    assert printable([{ESCAPES: (ESCAPES, 1, None)}]) == [{SHOWN: [SHOWN, 1, None]}]
    notice = {"event": "notice", "time": 1, "message": ESCAPES}
    found = read_event_line(json.dumps(notice).encode())
    assert found
    assert found["message"] == SHOWN
    data = {"host": "a", "task": "t", "res": {"msg": ESCAPES, "stderr_lines": [ESCAPES]}}
    event = read_event({"event": "runner_on_failed", "event_data": data})
    assert event is not None
    assert event.message == SHOWN


def test_events_of_a_newer_version_are_not_shown_as_if_they_were_known(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    first = {"event": "phase", "time": 1.0, "format": 99, "doing": "x"}
    file.write_bytes(json.dumps(first).encode() + b"\n" + END + b"\n")
    (notice,) = EventReader(file).new_events()
    assert notice["event"] == "notice"
    assert "was written by a newer ftcluster (format 99" in notice["message"]
    assert notice["message"].endswith("upgrade this ftcluster")
    file.write_bytes(json.dumps({**first, "format": 1}).encode() + b"\n" + END + b"\n")
    assert [event["event"] for event in EventReader(file).new_events()] == ["phase", "end"]
