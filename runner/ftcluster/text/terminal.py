"""Prints lines: wrapped and coloured on a terminal, plain elsewhere."""

import sys
import textwrap
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from ftcluster.text.printable import printable

INDENT = 2  # indent of continuation lines, relative to the line's own indent
NARROWEST = 20


def print_lines(
    lines: Iterable[Text | str], stream: TextIO | None = None, indent: int = INDENT
) -> None:
    """Print lines to stdout or another stream; on a terminal, wrap them between words.

    Every result, plan and error of a command is printed here. They can contain names from untrusted
    sources, so control characters and line breaks within a line are printed as escapes.

    Args:
        indent: indent of continuation lines in columns, relative to the line's own indent.
    """
    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False, emoji=False)
    for line in lines:
        text = safe(line)
        if not console.is_terminal:
            print(text.plain, file=stream)
            continue
        for part in cut(text, console.width, indent):
            console.print(part, soft_wrap=True)


def safe(line: Text | str) -> Text:
    r"""Escape all characters of a line that would control a terminal; keep the styles.

    >>> print(safe("a\x1b[2J").plain)
    a\x1b[2J
    """
    if isinstance(line, str):  # escape first: Text would drop some characters
        return Text(one_line(line))
    if one_line(line.plain) == line.plain:
        return line
    shown = line.blank_copy()
    for letter in line.divide(range(1, len(line.plain))):
        letter.plain = one_line(letter.plain)  # the whole escape gets the style
        shown.append_text(letter)
    return shown


def one_line(text: str) -> str:
    r"""Make one line safe for a terminal: remove colours, escape control characters, keep tabs.

    >>> one_line("\x1b[31mred\tx\x1b]52;c;YQ==\x07\n")
    'red\tx\\x1b]52;c;YQ==\\x07\\n'
    """
    return str(printable(text)).replace("\n", "\\n")


def cut(text: Text, width: int, indent: int) -> list[Text]:
    """Wrap a line to `width` columns; do not split longer words, such as paths.

    >>> [part.plain for part in cut(Text("  one two three and a_word_that_is_longer"), 24, 2)]
    ['  one two three and', '    a_word_that_is_longer']
    """
    plain = text.plain
    margin = len(plain) - len(plain.lstrip())
    before = margin + indent if width - margin - indent >= NARROWEST else margin
    words = textwrap.wrap(
        plain[margin:], max(NARROWEST, width - margin), subsequent_indent=" " * (before - margin),
        break_long_words=False, break_on_hyphens=False, replace_whitespace=False,
        expand_tabs=False,
    )  # fmt: skip
    parts: list[Text] = []
    begin = 0
    for words_of_part in words:
        begin = plain.index(words_of_part.strip(), begin)
        end = begin + len(words_of_part.strip())
        parts.append(Text(" " * (before if parts else margin)) + text[begin:end])
        begin = end
    return parts or [Text()]
