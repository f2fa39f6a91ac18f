"""mpirun's output in the pieces in which it is read."""

from pathlib import Path

import pytest

from ftcluster_common.protocol.launch import label_pattern
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.io.mpi_output import (
    FLUSH_SECONDS,
    LAST_LINES,
    MarkedLines,
    RankEnd,
    RankOutput,
    Splitter,
    Stream,
    append_to_log,
    read_end,
)

RUN = "glue-20260131-101500"


def label(rank: int) -> str:
    return label_pattern(RUN).replace("%r", str(rank))


A, B, C = label(0), label(1), label(123)
# output of Intel MPI 2021.18: partial lines, and parts of several ranks in one line
SAID = (
    f"{B}start 1 {A}start 0 {B}more 1\n{A}more 0\n{B}\n{A}two\r\rcr{C}x\n"
    f"{A}[1] not a label [glue- nor that\n"
    "=   BAD TERMINATION\n"
    f"{B}no line end"
)
BY_RANK = {
    0: "start 0 more 0\ntwo\r\rcr[1] not a label [glue- nor that\n",
    1: "start 1 more 1\n\nno line end",
    123: "x\n",
    None: "=   BAD TERMINATION\n",
}


def split(pieces: list[bytes]) -> dict[int | None, str]:
    splitter, found = Splitter(RUN), dict[int | None, bytes]()
    for rank, text in [
        *(one for piece in pieces for one in splitter.feed(piece)),
        *splitter.close(),
    ]:
        found[rank] = found.get(rank, b"") + text
    return {rank: text.decode() for rank, text in found.items()}


def test_every_cut_gives_the_same() -> None:
    data = SAID.encode()
    for at in range(len(data) + 1):
        assert split([data[:at], data[at:]]) == BY_RANK
    assert split([bytes([byte]) for byte in data]) == BY_RANK
    # thousands of ranks
    count = 3000
    data = "".join(f"{label(rank)}{rank} {label(rank)}again\n" for rank in range(count)).encode()
    found = split([data[i : i + 4096] for i in range(0, len(data), 4096)])
    assert found == {rank: f"{rank} again\n" for rank in range(count)}


def test_what_may_be_half_a_label_waits_and_everything_else_does_not() -> None:
    splitter = Splitter(RUN)
    assert splitter.feed(f"{A}50 %".encode()) == [(0, b"50 %")]
    assert splitter.feed(f" [{RUN} 1".encode()) == [(0, b" ")]
    assert splitter.feed(b"7] x") == [(17, b"x")]
    assert splitter.feed(b"[") == []
    assert splitter.close() == [(17, b"[")]


ENDS = [RankEnd(3, "node2", 1), RankEnd(0, "node1", 137, "SIGKILL")]


def test_what_is_for_the_supervisor_is_taken_out_wherever_it_is_cut() -> None:
    data = f"half a line{ENDS[0].line()}F FTC\n{ENDS[1].line()}FTCLUSTER".encode()
    for at in range(len(data) + 1):
        marked = MarkedLines()
        first, second = marked.feed(data[:at]), marked.feed(data[at:])
        assert first[0] + second[0] + marked.close() == b"half a lineF FTC\nFTCLUSTER"
        assert [read_end(line) for line in first[1] + second[1]] == ENDS


def test_lines_that_only_look_like_an_end() -> None:
    assert read_end("hello") is None
    assert read_end("FTCLUSTER-RANK {") is None
    assert read_end('FTCLUSTER-RANK {"rank": 1}') is None
    assert RankEnd(0, "a", 3).description == "ended with exit code 3"
    assert RankEnd(0, "a", 139, "SIGSEGV").description == "was killed by signal 11 (SIGSEGV)"


class Listener:
    """A RankOutput whose clock stands still until the test moves it."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.told: list[tuple[Stream, str]] = []
        self.folder = folder / "logs"
        self.output = RankOutput(
            self.folder, RUN, lambda *what: self.told.append(what), lambda: self.now
        )

    def log(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    return Listener(tmp_path)


def test_each_rank_has_a_log_of_both_streams(listener: Listener) -> None:
    listener.output.feed("stdout", f"{A}one\n{B}uno\n".encode())
    listener.output.feed("stderr", f"{A}two\n[mpiexec] hm\n".encode())
    listener.output.close()
    assert listener.log("rank-0.log") == "one\ntwo\n"
    assert listener.log("rank-1.log") == "uno\n"
    assert listener.log("mpirun.log") == "[mpiexec] hm\n"


def test_rank_0_is_told_on_by_and_by(listener: Listener) -> None:
    output = listener.output
    output.feed("stdout", f"{A}a{A}b{B}not told\n".encode())
    output.flush()
    assert listener.told == []
    listener.now = FLUSH_SECONDS
    output.flush()
    assert listener.told == [("stdout", "ab")]
    output.feed("stdout", f"{A}c\n".encode())
    output.feed("stderr", f"{A}d\n".encode())
    output.feed("stdout", f"{A}e".encode())
    output.close()
    assert listener.told[1:] == [("stdout", "c\n"), ("stderr", "d\n"), ("stdout", "e")]


def test_a_letter_of_two_bytes_in_two_pieces(listener: Listener) -> None:
    first, second = "grün".encode()[:3], "grün".encode()[3:]
    listener.output.feed("stdout", A.encode() + first)
    listener.output.feed("stdout", A.encode() + second + b"\xff" + "ü".encode()[:1])
    listener.output.close()
    assert "".join(text for _, text in listener.told) == "grün\ufffd\ufffd"
    assert (listener.folder / "rank-0.log").read_bytes() == b"gr\xc3\xbcn\xff\xc3"


def test_ends_and_errors_are_known_and_not_shown(listener: Listener) -> None:
    output = listener.output
    output.feed("stderr", f"{A}fine\n{A}{RankEnd(0, 'node1', 0).line()}".encode())
    assert output.failure is None
    output.feed("stderr", f"{B}bad{B}{RankEnd(1, 'node2', 3).line()}".encode())
    output.feed("stderr", f"{C}{RankEnd(123, 'node9', 1).line()}".encode())
    output.feed("stdout", f"{B}{error_line(TrainError('no such core', 'mend it'))}\n".encode())
    assert output.failure == RankEnd(1, "node2", 3)
    assert [error["message"] for error in output.errors] == ["no such core"]
    assert len(output.ends) == 3
    assert output.last_lines(1) == "bad"
    output.close()
    assert listener.log("rank-0.log") == "fine\n"


def test_last_lines_are_lines_with_something_on_them(listener: Listener) -> None:
    many = "".join(f"{A}line {number}\n{A}\n" for number in range(100))
    listener.output.feed("stdout", f"{many}{A}\r1/3\r2/3\r3/3\r\n{A}the end".encode())
    words = listener.output.last_lines(0).splitlines()
    assert words[-3:] == ["line 99", "3/3", "the end"]
    assert len(words) == LAST_LINES
    assert listener.output.last_lines(7) == ""


def test_a_rank_that_was_killed_together_with_its_parent(listener: Listener) -> None:
    banner = (
        f"{A}x\n\n====\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        "=   RANK 1 PID 18512 RUNNING AT node2\n=   KILLED BY SIGNAL: 9 (Killed)\n===="
    )
    assert listener.output.killed() is None
    listener.output.feed("stdout", banner.encode())
    assert listener.output.killed() == RankEnd(1, "node2", 137, "SIGKILL")


def test_a_full_disk_does_not_end_the_run(listener: Listener) -> None:
    for path in listener.folder.iterdir():
        path.unlink()
    listener.folder.rmdir()  # like a full disk: nothing can be written
    listener.output.feed("stdout", f"{A}hello\n".encode())
    listener.output.close()
    assert listener.told == [("stdout", "hello\n")]


def test_a_log_keeps_its_end_and_what_was_before_it(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    for number in range(10):
        append_to_log(path, f"line {number}\n".encode(), limit_bytes=21)
    assert path.read_text() == "line 9\n"
    assert (tmp_path / "rank-0.log.1").read_text() == "line 6\nline 7\nline 8\n"
    append_to_log(tmp_path / "missing" / "x.log", b"lost")  # as on a full disk
