# Apache-2.0 (see LICENSE)
"""The format of the cluster's record, a JSON document in one line. Pure functions only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

FORMAT = 1
MOST = 200_000  # maximum characters; all facts share one Ansible event of 700 kB
SECTIONS = ("drained", "all_reduce", "tunings")


def wrong_format(number: object) -> str:
    """Return the error message for a record of another format."""
    newer = isinstance(number, int) and number > FORMAT
    return (
        f"it was written by {'a newer' if newer else 'another'} ftcluster (format {number!a:.40}, "
        f"this one reads {FORMAT})" + (": upgrade this ftcluster" if newer else "")
    )


def parse_record(text: str) -> dict[str, dict[str, Any]]:
    """Return the sections of a record, each a mapping of named entries; {} for an empty string.

    Raises:
        ValueError: the text is not a record, or has another format.
    """
    try:
        document = json.loads(text) if text.strip() else {"format": FORMAT}
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is not a mapping")
    if document.get("format") != FORMAT:
        raise ValueError(wrong_format(document.get("format")))
    sections = {name: document.get(name, {}) for name in SECTIONS}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise ValueError(f"its {name} is not a mapping")
    return sections


def refuse_unmeasured(changes: Mapping[str, Any]) -> None:
    """Check that all measurements are numbers, because the account's programs could forge them.

    Raises:
        ValueError: a measurement is not a number.
    """
    for by, measured in (changes.get("all_reduce") or {}).items():
        measured = measured or {"ms": {}}
        sizes = measured.get("sizes", {})
        of_sizes = sizes.values() if isinstance(sizes, dict) else [sizes]
        for times in [measured.get("ms"), *of_sizes]:
            if not isinstance(times, dict):
                raise ValueError(f"the all-reduce times measured by {by} must be a mapping")
            for backend, ms in times.items():
                if not isinstance(ms, (int, float)) or not math.isfinite(ms) or not ms > 0:
                    raise ValueError(
                        f"the all-reduce time of {backend!a}, measured by {by}, must be a positive "
                        f"number of milliseconds, got {ms!a}"
                    )


def merged(
    sections: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the sections after changes: set entries, and remove entries whose value is None.

    New entries come last.

    >>> merged({"drained": {"a": 1, "b": 2}}, {"drained": {"a": None, "c": 3}})
    {'drained': {'b': 2, 'c': 3}}
    """
    found = {}
    for name, section in sections.items():
        changed = changes.get(name) or {}
        # an entry whose value does not change keeps its place
        kept = {key: one for key, one in section.items() if changed.get(key, one) == one}
        new = {key: one for key, one in changed.items() if one is not None and key not in kept}
        found[name] = {**kept, **new}
    return found


def rendered(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of a record; drop the oldest tunings if the text would be too long.

    Raises:
        ValueError: the text is too long even without tunings.
    """
    tunings = dict(sections["tunings"])
    while True:
        text = json.dumps({"format": FORMAT, **sections, "tunings": tunings}, allow_nan=False)
        if len(text) <= MOST:
            return text
        if not tunings:
            raise ValueError(f"it would be longer than the limit of {MOST} characters")
        del tunings[next(iter(tunings))]
