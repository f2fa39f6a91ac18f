"""Reads small files that somebody else may have made: regular, of bounded size, and text.

Standard library only.
"""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MAX_BYTES = 64 << 20  # the largest tokenizer_config.json that is known has 20 MB
MAX_DIGITS = 300  # of a whole number: more are no float either (IEEE 754, 1.8e308)


class GivenFileError(ValueError):
    """A file is not used; says which one and why."""


class FormatError(ValueError):
    """A document has a format that this version does not read; the text follows its file's name."""


def read_given(
    path: Path,
    max_bytes: int = MAX_BYTES,
    check: Callable[[os.stat_result], None] = lambda _: None,
) -> str:
    """The text of a file. It may be a link, because the user has named the path or its folder.

    Args:
        check: gets owner and mode of the open file, and raises an error of its own to refuse it.

    Raises:
        GivenFileError: it is missing or cannot be read, is a folder, a pipe or a device, is larger,
            or is not UTF-8 text.
    """
    try:
        # a pipe would be waited for, and a terminal become this process's own
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
        raise GivenFileError(f"{str(path)!a}: {error}") from error  # a NUL in the path
    if len(content) > max_bytes:
        raise GivenFileError(f"{path} has more than {max_bytes:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GivenFileError(
            f"{path} is not UTF-8: {error.reason} at byte {error.start}"
        ) from error
    if "\0" in text:
        raise GivenFileError(f"{path} is not text: it has a byte of zero")
    return text


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has a number of {len(digits):,} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_whole)


def parse_json(text: str) -> Any:
    """A JSON document.

    Raises:
        ValueError: it is none, is nested too deeply, has a number that is too long, or half of a
            surrogate pair.
    """
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:  # no encoder or tokenizer takes a half alone
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair") from None
    return value


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """The JSON document of a file.

    Raises:
        GivenFileError: as in `read_given`, or it is no JSON.
    """
    try:
        return parse_json(read_given(path, max_bytes))
    except GivenFileError:
        raise
    except ValueError as error:
        raise GivenFileError(f"{path} is not JSON: {error}") from error


def read_form(path: Path, form: Callable[[Any], T]) -> T:
    """What a function makes of the JSON document of a file, whose texts may be file names.

    Args:
        form: raises ValueError, LookupError, TypeError or AttributeError where the document has
            another form, and FormatError where its format is older or newer than what is read.

    Raises:
        GivenFileError: as in `read_given`, or it is no JSON, or has another form or format.
    """
    text = read_given(path)
    try:
        return form(_DECODER.decode(text))
    except FormatError as error:
        raise GivenFileError(f"{path} {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise GivenFileError(f"{path} is damaged: {error!r:.100}") from error
