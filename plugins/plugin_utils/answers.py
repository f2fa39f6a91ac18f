# Apache-2.0 (see LICENSE)
"""What a shell command on a host answers, found among what else it prints."""

from __future__ import annotations

# Nothing that a banner, a login script or sudo says. The shell puts it together only when it
# prints, so that neither a trace of the commands nor an error that quotes them has it.
MARK = "ftcluster-answer:"
# a function of the shell, of a key and a value
TELL = "tell() { printf 'ftcluster-%s: %s\\n' answer \"$*\"; }"


def answers(text):
    """The values of each key, from lines of MARK, a key and a value; other text is passed over.

    Lines may end with carriage returns, as a terminal makes them, and text without a line end may
    come before a mark.
    """
    found = {}
    for line in text.split("\n"):
        _, mark, answer = line.partition(MARK)
        key, _, value = answer.strip().partition(" ")
        if mark and key:
            found.setdefault(key, []).append(value.strip())
    return found
