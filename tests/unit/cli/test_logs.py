"""The command `logs`, with a run that has two ranks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ftcluster.launch.run_hosts import RunHosts
from ftcluster.operations import connection
from ftcluster.operations.runs import runs
from ftcluster_common.protocol.run_state import RunState
from tests.unit.shell import Said, Shell

RUN_HOSTS = RunHosts((), ("head",), "", "/opt/ftcluster", ())
RUN = RunState("mrpc-1", "running", "mrpc", ("head",), 2, 3, 9, 0.0, 1.0, "")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Yield the pieces of the log that the head writes."""
    pieces: list[bytes] = []

    def copy_logs(*arguments: Any) -> None:
        (destination,) = arguments[2].values()
        on_tick: Callable[[], None] = arguments[4]
        for piece in pieces:
            with destination.open("ab") as file:
                file.write(piece)
            on_tick()

    monkeypatch.setattr(runs, "find", lambda *_, **__: (RUN_HOSTS, RUN.run))
    monkeypatch.setattr(runs, "find_run", lambda *_: RUN)
    monkeypatch.setattr(runs, "copy_logs", copy_logs)
    return pieces


def test_no_such_rank_and_no_json_of_a_log(shell: Shell, written: list[bytes]) -> None:
    assert "--json" in shell("logs --json", 2).err
    written.append(b"hello\n")
    assert shell("logs --rank 1").out == "hello\n"
    said = shell("logs --rank 2", 2)
    assert (said.out, "mrpc-1 has no rank 2, only 2 ranks: 0 to 1" in said.err) == ("", True)


def test_what_is_cut_into_pieces_is_shown_whole_and_without_colours(
    written: list[bytes], shell: Shell
) -> None:
    written += [b"[0] \x1b[1mbo", b"ld\x1b", b"[0m \xc3", b"\xbc\x1b[2J\n[1] half"]
    assert shell("logs -f").out == "[0] bold ü\\x1b[2J\n[1] half"


def test_a_line_without_end_is_shown_as_it_comes(
    written: list[bytes], monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.setattr(runs, "PIECE_BYTES", 8)
    written += [b"a\nb" + b"x" * 20, b"x" * 5 + b"\nc\nd", b"e"]
    shown: list[str] = []
    monkeypatch.setattr(runs, "printable", lambda text: shown.append(text) or text)
    assert shell("logs").out == "a\nb" + "x" * 25 + "\nc\nde"
    assert max(map(len, shown)) == 8


def test_the_log_of_a_run_whose_head_is_off(
    monkeypatch: pytest.MonkeyPatch, shell: Shell,
    said: Said,
) -> None:  # fmt: skip
    """The first host that responds has only the run's job."""
    run_hosts, lost = replace(RUN_HOSTS, hosts=("node1",)), replace(RUN, hosts=(), state="failed")
    monkeypatch.setattr(connection, "cluster_run_hosts", lambda *_: run_hosts)
    monkeypatch.setattr(connection, "list_everywhere", lambda *_: ([lost], 0, ()))
    for known in (RUN_HOSTS, None):
        monkeypatch.setattr(connection, "recorded_run_hosts", lambda _, known=known: known)
        shown = shell("logs mrpc-1 -i hosts.ini", 1)
        assert shown.out == ""
        said(shown.err)
