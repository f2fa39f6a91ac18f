"""Token samples of earlier runs are reused only if nothing has changed."""

import os
import time
from pathlib import Path

import pytest

from ftcluster_train.engine.data.token_cache import KEPT_SETS, cached_tokens, token_key


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_the_key_is_that_of_settings_names_and_bytes(tmp_path: Path) -> None:
    one = write(tmp_path / "one", train="a", validation="b")
    key = token_key({"task": "x"}, [one])
    assert key == token_key({"task": "x"}, [write(tmp_path / "two", train="a", validation="b")])
    others = [
        token_key({"task": "y"}, [one]),
        token_key({"task": "x"}, [one, one]),
        token_key({"task": "x"}, [write(tmp_path / "three", train="a", validation="c")]),
        token_key({"task": "x"}, [write(tmp_path / "four", train="ab", validation="")]),
        token_key({"task": "x"}, [write(tmp_path / "five", train="a", test="b")]),
    ]
    assert len({key, *others}) == 6


def test_weights_and_compiled_code_do_not_count(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", vocabulary="a")
    key = token_key({}, [folder])
    (folder / "model.safetensors").write_text("weights")
    (folder / "code.pyc").write_text("compiled")
    assert token_key({}, [folder]) == key


def test_the_second_run_makes_nothing(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> list[str]:
        made.append(folder)
        (folder / "values").write_text("1 2 3")
        return ["one was cut"]

    first = cached_tokens(tmp_path / "cache", "k", make)
    assert first == cached_tokens(tmp_path / "cache", "k", make)
    assert len(made) == 1
    folder, notices = first
    assert notices == ["one was cut"]
    assert (folder / "values").read_text() == "1 2 3"


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> list[str]:
        (folder / "values").write_text("1")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cached_tokens(tmp_path / "cache", "k", fail)
    assert list((tmp_path / "cache").iterdir()) == []
    _, notices = cached_tokens(tmp_path / "cache", "k", lambda _: ["made"])
    assert notices == ["made"]


def test_the_longest_unused_go(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for number in range(KEPT_SETS):
        folder, _ = cached_tokens(cache, f"k{number}", lambda _: [])
        os.utime(folder, (number, number))
    cached_tokens(cache, "k0", lambda _: [])  # the samples are used again
    cached_tokens(cache, "new", lambda _: [])
    assert {path.name for path in cache.iterdir()} == {
        "new", "k0", *(f"k{number}" for number in range(2, KEPT_SETS))
    }  # fmt: skip


def test_what_is_in_use_stays_if_the_clock_was_set_back(tmp_path: Path) -> None:
    cache, tomorrow = tmp_path / "cache", time.time() + 86400
    for number in range(KEPT_SETS):
        folder, _ = cached_tokens(cache, f"k{number}", lambda _: [])
        os.utime(folder, (tomorrow + number, tomorrow + number))
    folder, notices = cached_tokens(cache, "new", lambda _: ["made"])
    assert (folder.is_dir(), notices) == (True, ["made"])
    assert {path.name for path in cache.iterdir()} == {
        "new", *(f"k{number}" for number in range(1, KEPT_SETS))
    }  # fmt: skip
