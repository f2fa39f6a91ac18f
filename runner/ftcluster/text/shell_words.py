"""Quotes the arguments of commands that are printed or written into bash scripts."""

import shlex
from collections.abc import Iterable

from ftcluster.text.printable import is_plain


def shell_word(text: str) -> str:
    r"""Quote an argument for bash, as one line without control characters.

    Control characters become escapes in `$'...'` (section Quoting of bash's manual).

    >>> print(shell_word("a b"), shell_word("a\n#SBATCH it's"))
    'a b' $'a\x0a#SBATCH it\'s'
    """
    if is_plain(text):
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if is_plain(letter):
        return letter
    is_byte = "\udc80" <= letter <= "\udcff"  # a byte of a path that is not UTF-8 (PEP 383)
    encoded = letter.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in encoded)


def shell_line(words: Iterable[str]) -> str:
    """Quote the arguments of a command as a line of bash."""
    return " ".join(map(shell_word, words))
