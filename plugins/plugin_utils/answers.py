# Apache-2.0 (see LICENSE)
"""Finds the values that a shell command prints among other output."""

from __future__ import annotations

# No banner and no output of login scripts or sudo contains this mark. The shell assembles the mark
# when it prints, so a trace of the commands or an error with the commands does not contain it.
MARK = "ftcluster-answer:"
# beginning of an error after which the supervisor should be restarted
SUPERVISOR_GONE = "the supervisor ended without an end event"
# a shell function that prints a key and a value
TELL = "tell() { printf 'ftcluster-%s: %s\\n' answer \"$*\"; }"


def answers(text: str) -> dict[str, list[str]]:
    """Return the values of each key from lines with MARK, a key and a value; skip other lines.

    Lines may end with carriage returns from a terminal, and text may precede a mark.
    """
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        mark, answer = line.partition(MARK)[1:]
        key, value = answer.strip().partition(" ")[::2]
        if mark and key:
            found.setdefault(key, []).append(value.strip())
    return found
