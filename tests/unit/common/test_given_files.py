import os
from pathlib import Path

import pytest

from ftcluster_common.given_files import GivenFileError, parse_json, read_given, read_json


def test_text_is_read_also_by_a_link_and_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbf{}")
    (tmp_path / "link").symlink_to("file")
    assert read_given(tmp_path / "link") == "{}"
    assert read_json(tmp_path / "file", 5) == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "No such file"), ("folder", "Is a directory"), ("pipe", "is a pipe or a device"),
        ("/dev/zero", "is a pipe or a device"), ("large", "is larger than 1,000 bytes"),
        ("latin", "is not UTF-8: invalid continuation byte at byte 0"), ("nul", "zero byte"),
        ("a\0b", "embedded null"), ("x" * 300, "File name too long"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused_by_its_name(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    (tmp_path / "latin").write_bytes("é".encode("latin-1") + b"a")
    (tmp_path / "nul").write_bytes(b"a\0b")
    with pytest.raises(GivenFileError, match=words) as caught:
        read_given(tmp_path / name, 1000)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "{", "", "\x07"])
def test_what_is_no_document_is_a_value_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(GivenFileError, match=r"file\.json is not JSON: "):
        read_json(tmp_path / "file.json")


def test_half_of_a_letter_is_no_text() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "\N{GRINNING FACE}"
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        parse_json('{"a": ["\\ud83d"]}')
    # integers beyond the range of floats are refused
    assert parse_json(f"[{'9' * 300}, -1, 1.5, 1e999]") == [10**300 - 1, -1, 1.5, float("inf")]
    for digits in (301, 4000, 100_000):
        with pytest.raises(ValueError, match=f"a number with {digits:,} digits"):
            parse_json(f'{{"a": {"9" * digits}}}')
