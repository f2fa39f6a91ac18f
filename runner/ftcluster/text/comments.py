"""Comments of generated files: shell commands, batch scripts and manifests."""

from collections.abc import Iterable

from ftcluster.text.printable import in_one_line

MARK = "#"


def comments(lines: Iterable[object]) -> list[str]:
    """Return each line as one comment, whatever characters it has.

    Every writer of a generated file with comments uses this function: a name with a line break
    would otherwise continue behind its comment, as a command or as another document.

    >>> comments(["columns: a\\nrm -rf ~", ""])
    ['# columns: a\\\\nrm -rf ~', '#']
    """
    return [f"{MARK} {in_one_line(str(line))}".rstrip() for line in lines]
