"""Read the tags of a run, such as `team=nlp ticket=42`. `ps`, reports and trackers show them."""

import re
from collections import Counter
from collections.abc import Sequence

from ftcluster.errors import UsageError

MOST = 20
NAME, VALUE = r"[A-Za-z_][A-Za-z0-9_.-]{0,39}", r"[^\s=\x00-\x1f\x7f-\x9f]{1,80}"
TAG = re.compile(f"{NAME}={VALUE}")


def read_tags(words: Sequence[str]) -> str:
    """Join tags into one line; "" without tags.

    Raises:
        UsageError: tags are not valid (lists all of them), a name is used twice, or there are too
            many tags.

    >>> read_tags(["team=nlp", "ticket=42"])
    'team=nlp ticket=42'
    """
    if wrong := [word for word in words if not is_tag(word)]:
        raise UsageError(
            f"not a tag: {', '.join(map(ascii, wrong))}",
            "a tag has the form NAME=VALUE, with a name of letters and digits, and a value of up "
            "to 80 characters without blanks",
        )
    tags = dict(word.split("=") for word in words)
    names = Counter(word.partition("=")[0] for word in words)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise UsageError(f"--tag {', '.join(twice)}: set twice; set each name only once")
    if len(tags) > MOST:
        raise UsageError(f"at most {MOST} tags are allowed, got {len(tags)}")
    return " ".join(f"{name}={value}" for name, value in tags.items())


def is_tag(word: str) -> bool:
    """Return True if a string is a valid tag."""
    return bool(TAG.fullmatch(word)) and word.isprintable()
