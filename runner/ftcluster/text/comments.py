"""Comments of generated files: shell commands, batch scripts and manifests."""

from collections.abc import Iterable

from ftcluster.text.printable import in_one_line

MARK = "#"


def comments(lines: Iterable[object]) -> list[str]:
    """Return each line as a comment, whatever characters it contains.

    Every writer of a generated file with comments must use this function. Without it, the text
    after a line break in a name would become a command or another document.

    >>> comments(["columns: a\\nrm -rf ~", ""])
    ['# columns: a\\\\nrm -rf ~', '#']
    """
    return [f"{MARK} {in_one_line(str(line))}".rstrip() for line in lines]
