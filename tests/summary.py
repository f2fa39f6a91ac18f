"""A summary of several pytest sessions: results by layer, skips by reason, and the slowest files.

    python3 tests/summary.py FOLDER

Each session leaves a file in FOLDER, by `write`.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

OUTCOMES = ("passed", "failed", "error", "skipped")
SLOWEST = 25  # number of files in the table of durations


def write(
    folder: Path,
    outcomes: Iterable[tuple[str, str]],
    reasons: Iterable[str],
    seconds: Iterable[tuple[str, float]],
) -> None:
    """Save the results of a session in `folder`.

    Args:
        outcomes: id of each test, and its outcome, one of OUTCOMES.
        reasons: reason of each skip.
        seconds: id of each test, and the duration of its setup, its call or its teardown.
    """
    files: Counter[str] = Counter()
    for test, taken in seconds:
        files[test.partition("::")[0]] += taken
    session = {"outcomes": [*outcomes], "reasons": [*reasons], "seconds": files}
    folder.joinpath(f"{len([*folder.glob('*.session')])}.session").write_text(json.dumps(session))


def table(sessions: Iterable[dict[str, Any]]) -> list[str]:
    """Return the lines of the summary."""
    layers: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for session in sessions:
        reasons.update(session["reasons"])
        seconds.update(session["seconds"])
        for test, outcome in session["outcomes"]:
            layers.setdefault(_layer(test), Counter())[outcome] += 1
    rows = [("", *OUTCOMES)]
    for layer, counts in sorted(layers.items()):
        rows.append((layer, *(str(counts[outcome] or "") for outcome in OUTCOMES)))
    return [
        *("".join(f"{cell:>9}" if place else f"{cell:8}" for place, cell in enumerate(row))
          for row in rows),
        *(f"skipped: {count} {reason}" for reason, count in sorted(reasons.items())),
        *(f"{taken:5.0f} s of {sum(seconds.values()):.0f} s: {file}"
          for file, taken in seconds.most_common(SLOWEST)),
    ]  # fmt: skip


def _layer(test: str) -> str:
    folders = test.partition("::")[0].split("/")
    return folders[1] if len(folders) > 2 else "lint"


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).glob("*.session"))
    print("\n".join(table(json.loads(file.read_text()) for file in files)))
