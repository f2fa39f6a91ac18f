from pathlib import Path

from ftcluster_train.host.rank_logs import append


def test_a_log_keeps_its_end_and_what_was_before_it(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    for number in range(10):
        append(path, f"line {number}\n".encode(), limit_bytes=21)
    assert path.read_text() == "line 9\n"
    assert (tmp_path / "rank-0.log.1").read_text() == "line 6\nline 7\nline 8\n"
    append(tmp_path / "missing" / "x.log", b"lost")  # as on a full disk
