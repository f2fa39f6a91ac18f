"""Reads the rows of JSON documents one by one, so that documents may be larger than memory.

Standard library only.

A document is a list of rows, or an object with a single list. Only a row must fit into memory, with
at most MOST_CHARACTERS. Other documents, such as pandas' columns, are read as a whole, with at most
MOST_WHOLE characters.
"""

import re
from collections.abc import Callable, Iterator
from json import JSONDecodeError
from typing import Any, TextIO

from ftcluster_common.given_files import parse_json, parse_json_at

BLOCK = 1 << 17  # characters per read
MOST_CHARACTERS = 1 << 26  # characters of a row, or of another value beside the list
MOST_WHOLE = 1 << 28  # characters of a document that is read as a whole
# the messages of the module json
DELIMITER = "Expecting ',' delimiter"
EXPECTED = {":": "Expecting ':' delimiter", "]": DELIMITER, "}": DELIMITER}
SPACE = " \t\n\r"
# a truncated number, word or escape has fewer characters than this
LOOKAHEAD = 16
UNFINISHED = "Unterminated string"
# a JSON escape that is half of a surrogate pair
HALF = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class JsonDocumentError(ValueError):
    """A document is damaged or too large.

    Attributes:
        line: line of the problem, from 1.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class TooLargeError(JsonDocumentError):
    """A value has too many characters to be read as a whole."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(
            f"{what} characters; write JSON Lines instead, one object per line (with pandas: "
            "orient='records', lines=True)",
            line,
        )


class NotADocumentError(ValueError):
    """A text is neither a list nor a single object."""


class JsonReader:
    """Reads a JSON document piece by piece.

    Args:
        content: text of the document, at its beginning.
    """

    def __init__(self, content: TextIO) -> None:
        self._content = content
        self._text, self._place = "", 0  # characters that were read, and index of the next one
        self._line = 1  # line of the first character of the text
        self._is_complete = False  # True after the last character was read

    def peek(self) -> str:
        """Return the next character that is not white space; "" at the end."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in SPACE:
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._read_more(BLOCK):
                return ""

    def skip(self, character: str) -> None:
        """Skip a character of EXPECTED.

        Raises:
            JsonDocumentError: another character is next.
        """
        if self.peek() != character:
            raise self.error(EXPECTED[character])
        self._place += 1

    def value(self) -> Any:
        """Return the next value.

        Raises:
            JsonDocumentError: there is no valid value, or it has more than MOST_CHARACTERS.
        """
        self.peek()
        wanted = BLOCK
        while True:
            try:
                value, end = parse_json_at(self._text, self._place)
            except JSONDecodeError as error:
                is_cut = error.msg.startswith(UNFINISHED) or error.pos + LOOKAHEAD > len(self._text)
                if self._is_complete or not is_cut:
                    raise self.error(error.msg, error.pos) from error
            except ValueError as error:
                half = HALF.search(self._text, self._place)
                shown = f"{error} ({half[0]})" if half else str(error)
                raise self.error(shown, half.start() if half else None) from error
            else:
                # a number may continue after the last character
                if self._is_complete or end + LOOKAHEAD <= len(self._text):
                    self._place = end
                    return value
            if len(self._text) - self._place > MOST_CHARACTERS:
                raise TooLargeError(f"a value has more than {MOST_CHARACTERS:,}", self._line)
            self._read_more(wanted)
            wanted *= 2  # so that a long value is not parsed too often

    def items(self) -> Iterator[Any]:
        """Yield the elements of a list whose bracket is next.

        Raises:
            JsonDocumentError: the list is damaged, or an element is too large.
        """
        self.peek()
        self._place += 1
        if self.peek() == "]":
            self._place += 1
            return
        while True:
            yield self.value()
            if self.peek() != ",":
                break
            self._place += 1
        self.skip("]")

    def keys(self) -> Iterator[str]:
        """Yield the keys of an object whose brace is next; the caller reads each key's value.

        Raises:
            JsonDocumentError: the object is damaged.
        """
        self.peek()
        self._place += 1
        if self.peek() == "}":
            self._place += 1
            return
        while True:
            if self.peek() != '"':
                raise self.error("Expecting property name enclosed in double quotes")
            key = self.value()
            self.skip(":")
            self.peek()
            yield key
            if self.peek() != ",":
                break
            self._place += 1
        self.skip("}")

    def finish(self) -> None:
        """Check that the document ends here.

        Raises:
            JsonDocumentError: there is more text.
        """
        if self.peek():
            raise self.error("Extra data")

    def error(self, message: str, place: int | None = None) -> JsonDocumentError:
        """Return an error for a place in the text; by default the next character."""
        place = self._place if place is None else place
        return JsonDocumentError(message, self._line + self._text.count("\n", 0, place))

    def _read_more(self, count: int) -> bool:
        """Read up to `count` characters, drop the used ones, and return False at the end."""
        more = self._content.read(count)
        if not more:
            self._is_complete = True
            return False
        self._line += self._text.count("\n", 0, self._place)
        self._text, self._place = self._text[self._place :] + more, 0
        return True


def skip_value(reader: JsonReader) -> bool:
    """Skip a value, without keeping a list in memory; return True if it is a list."""
    if reader.peek() == "[":
        for _ in reader.items():
            pass
        return True
    reader.value()
    return False


def rows_of_document(open_document: Callable[[], TextIO]) -> Iterator[Any]:
    """Yield the elements of a document: of its list, or of the only list in its object.

    An object without such a list is a single row, unless pandas wrote its rows column by column.

    Args:
        open_document: function that opens the document; it is called up to twice.

    Raises:
        NotADocumentError: the text is neither a list nor a single object, like JSON Lines.
        TooLargeError: a value is too large.
        JsonDocumentError: the list is damaged; its rows before the damage were yielded.
    """
    with open_document() as content:
        reader = JsonReader(content)
        if reader.peek() == "[":
            yield from reader.items()
            reader.finish()
            return
        place = _place_of_list(reader)
    with open_document() as content:
        if place is None:
            yield from rows_by_columns(_whole(content))
            return
        reader = JsonReader(content)
        for number, _ in enumerate(reader.keys()):
            if number == place:
                yield from reader.items()
                return
            skip_value(reader)


def _place_of_list(reader: JsonReader) -> int | None:
    """Return the number of the only member of an object that is a list, or None.

    Raises:
        NotADocumentError: the text is not a single object.
        TooLargeError: another member is too large.
    """
    if reader.peek() != "{":
        raise NotADocumentError
    try:
        # if a key is repeated, its last value counts, as in the module json
        members = {key: (number, skip_value(reader)) for number, key in enumerate(reader.keys())}
        reader.finish()
    except TooLargeError:
        raise
    except JsonDocumentError as error:
        raise NotADocumentError from error
    lists = [number for number, is_list in members.values() if is_list]
    return lists[0] if len(lists) == 1 else None


def _whole(content: TextIO) -> Any:
    text = content.read(MOST_WHOLE + 1)
    if len(text) > MOST_WHOLE:
        raise TooLargeError(f"it has no single list of rows, and more than {MOST_WHOLE:,}", 1)
    return parse_json(text)


def rows_by_columns(document: dict[str, Any]) -> list[Any]:
    """Return the rows of a document that pandas wrote by columns; other documents are one row.

    >>> rows_by_columns({"text": {"0": "a", "1": "b"}, "label": {"0": 1, "1": 0}})
    [{'text': 'a', 'label': 1}, {'text': 'b', 'label': 0}]
    """
    columns = list(document.values())
    if not columns or not all(isinstance(column, dict) for column in columns):
        return [document]
    numbers = columns[0].keys()
    if not all(number.isdecimal() for number in numbers):
        return [document]
    if any(column.keys() != numbers for column in columns):
        return [document]
    return [{name: column[number] for name, column in document.items()} for number in numbers]
