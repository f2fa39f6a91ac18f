"""Comments of generated files: shell commands, batch scripts and manifests."""

from collections.abc import Iterable

from ftcluster.text.printable import in_one_line

MARK = "#"


def comments(lines: Iterable[object]) -> list[str]:
    """Convert each line to a comment; escape line breaks and control characters in the line.

    Every writer of a generated file must use this function for comments. Otherwise the text after a
    line break in a name would become a command.

    >>> comments(["columns: a\\nrm -rf ~", ""])
    ['# columns: a\\\\nrm -rf ~', '#']
    """
    return [f"{MARK} {in_one_line(str(line))}".rstrip() for line in lines]
