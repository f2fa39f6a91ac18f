"""Reads small files that other users may have written: regular text files of limited size.

Standard library only.
"""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MAX_BYTES = 64 << 20  # the largest tokenizer_config.json that we know of has 20 MB
MAX_DIGITS = 300  # larger integers do not fit into a float either (IEEE 754, 1.8e308)


class GivenFileError(ValueError):
    """A file cannot be used; the message names the file and the reason."""


class FormatError(ValueError):
    """The document's format is not supported; callers put the file's name before the message."""


def read_given(
    path: Path,
    max_bytes: int = MAX_BYTES,
    check: Callable[[os.stat_result], None] = lambda _: None,
) -> str:
    """Return the text of a file; the path may be a link.

    Args:
        check: function that gets the os.stat result of the file and raises an error to refuse it.

    Raises:
        GivenFileError: the file is missing, unreadable, too large, not UTF-8 text, or is a folder,
            a pipe or a device.
    """
    try:
        # without O_NONBLOCK and O_NOCTTY, opening a pipe blocks and a terminal becomes our own
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise GivenFileError(f"{path} is a pipe or a device, not a file")
            check(about)
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise GivenFileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, GivenFileError):
            raise
        raise GivenFileError(f"{str(path)!a}: {error}") from error  # the path contains a NUL
    if len(content) > max_bytes:
        raise GivenFileError(f"{path} is larger than {max_bytes:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GivenFileError(
            f"{path} is not UTF-8: {error.reason} at byte {error.start}"
        ) from error
    if "\0" in text:
        raise GivenFileError(f"{path} is not text: it contains a zero byte")
    return text


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it contains a number with {len(digits):,} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_whole)


def parse_json(text: str) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or contains a number that is too
            long or half of a surrogate pair.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_pairs(value, text)
    return value


def parse_json_at(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at an index of a text, and the index after the value.

    Raises:
        ValueError: as in `parse_json`.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_pairs(value, text, start, end)
    return value, end


def _check_pairs(value: Any, text: str, start: int = 0, end: int | None = None) -> None:
    """Raise ValueError if a value has half of a surrogate pair, which no tokenizer accepts."""
    if text.find("\\ud", start, end) < 0 and text.find("\\uD", start, end) < 0:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it contains half of a surrogate pair") from None


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Return the JSON document of a file.

    Raises:
        GivenFileError: as in `read_given`, or the file is not JSON.
    """
    try:
        return parse_json(read_given(path, max_bytes))
    except GivenFileError:
        raise
    except ValueError as error:
        raise GivenFileError(f"{path} is not JSON: {error}") from error


def read_form(path: Path, form: Callable[[Any], T]) -> T:
    """Call `form` with the JSON document of a file, and return the result.

    Strings in the document may contain half of a surrogate pair, as Python's file names do.

    Args:
        form: function that raises ValueError, LookupError, TypeError or AttributeError if the
            document has an unexpected form, and FormatError if its format is not supported.

    Raises:
        GivenFileError: as in `read_given`, or the file is not JSON, or has an unexpected form or
            format.
    """
    text = read_given(path)
    try:
        return form(_DECODER.decode(text))
    except FormatError as error:
        raise GivenFileError(f"{path} {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise GivenFileError(f"{path} is damaged: {error!r:.100}") from error
