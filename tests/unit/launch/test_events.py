"""What the head writes into events.jsonl, and what a terminal gets of it."""

import json

import pytest

from ftcluster.ansible.playbook import read_event
from ftcluster.errors import FtclusterError
from ftcluster.launch.events import read_event_line
from ftcluster.text.printable import printable

ESCAPES = "a\x1b[2J\x07\x9b31m\r\nb\rc\td\x7f"
SHOWN = "a\\x1b[2J\\x07\\x9b31m\nb\\x0dc\td\\x7f"


@pytest.mark.parametrize(
    "line",
    [
        "no json", "[]", "null", "{}", '{"event": []}', '{"event": "step"}', "[" * 100_000,
        '{"event": "end", "state": {}, "exit_code": 0, "seconds": 1}',
        '{"event": "end", "state": "done", "exit_code": 0, "seconds": true}',
        '{"event": "end", "state": "done", "exit_code": 0}',
        '{"event": "error", "message": "x", "hint": "", "host": "a", "rank": "{{ 1 }}"}',
        '{"event": "evaluation", "step": 1, "epoch": 1, "metrics": {"f1": "1"}}',
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(FtclusterError, match="the head sent an invalid event: ") as caught:
        read_event_line(line.encode())
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


def test_kinds_of_a_later_version_are_passed_on() -> None:
    assert read_event_line(b'{"event": "later", "x": [1]}') == {"event": "later", "x": [1]}


def test_a_loss_that_is_no_number_any_more() -> None:
    line = (
        '{"event": "step", "step": 1, "epoch": 0.5, "loss": NaN, "grad_norm": NaN, '
        '"learning_rate": 0, "samples_per_second": 1.0, "train_seconds": 1, '
        '"remaining_seconds": 0.0}'
    )
    assert str(read_event_line(line.encode())["loss"]) == "nan"


def test_no_terminal_obeys_a_host() -> None:
    assert printable([{ESCAPES: (ESCAPES, 1, None)}]) == [{SHOWN: [SHOWN, 1, None]}]
    notice = {"event": "notice", "message": ESCAPES}
    assert read_event_line(json.dumps(notice).encode())["message"] == SHOWN
    data = {"host": "a", "task": "t", "res": {"msg": ESCAPES, "stderr_lines": [ESCAPES]}}
    event = read_event({"event": "runner_on_failed", "event_data": data})
    assert event is not None
    assert event.message == SHOWN


def test_what_a_users_own_script_prints_is_as_it_is() -> None:
    output = {"event": "output", "rank": 0, "stream": "stdout", "text": "50 %\r\x1b[1mdone"}
    assert read_event_line(json.dumps(output).encode()) == output
