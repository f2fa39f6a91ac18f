# Apache-2.0 (see LICENSE)
"""Finds a shell command's answers among its other output."""

from __future__ import annotations

# Not part of a banner, a login script's or sudo's output. The shell assembles it when it prints, so
# a trace of the commands or an error that quotes them does not contain it.
MARK = "ftcluster-answer:"
# how a failure begins that a new supervisor may end
SUPERVISOR_GONE = "the supervisor ended without an end event"
# a shell function that prints a key and a value
TELL = "tell() { printf 'ftcluster-%s: %s\\n' answer \"$*\"; }"


def answers(text: str) -> dict[str, list[str]]:
    """The values of each key, from lines of MARK, a key and a value; other text is ignored.

    Lines may end with carriage returns from a terminal, and text may precede a mark.
    """
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        mark, answer = line.partition(MARK)[1:]
        key, value = answer.strip().partition(" ")[::2]
        if mark and key:
            found.setdefault(key, []).append(value.strip())
    return found
