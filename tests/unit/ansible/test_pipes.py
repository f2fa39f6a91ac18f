import os
import threading
from pathlib import Path

import pytest

from ftcluster.ansible.pipes import Pipes


@pytest.fixture
def pipes() -> Pipes:
    return Pipes()


def test_the_first_reader_gets_all_of_it_and_there_is_no_second(
    pipes: Pipes, tmp_path: Path
) -> None:
    content = os.urandom(300_000)  # several times the capacity of a pipe
    path = pipes.give(tmp_path / "pipe", content)
    assert path.is_fifo()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == content
    assert not path.exists()
    pipes.close()


def test_what_is_dropped_is_nowhere(pipes: Pipes, tmp_path: Path) -> None:
    path = pipes.drop(tmp_path / "pipe")
    with path.open("wb") as file:
        file.write(b"secret" * 50_000)
    pipes.close()
    assert list(tmp_path.iterdir()) == []


def test_pipes_that_nobody_uses_end(pipes: Pipes, tmp_path: Path) -> None:
    pipes.give(tmp_path / "a", b"secret")
    pipes.drop(tmp_path / "b")
    before = threading.active_count()
    pipes.close()
    assert threading.active_count() == before - 2


def test_a_reader_that_goes_early_ends_it(pipes: Pipes, tmp_path: Path) -> None:
    path = pipes.give(tmp_path / "pipe", b"x" * 300_000)
    with path.open("rb", buffering=0) as file:
        assert file.read(3) == b"xxx"
    pipes.close()
