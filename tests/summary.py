"""A summary of several pytest sessions: a row for each layer, and skips by reason.

    python3 tests/summary.py FOLDER

Each session leaves a file in FOLDER, by `write`.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

OUTCOMES = ("passed", "failed", "error", "skipped")


def write(folder: Path, outcomes: Iterable[tuple[str, str]], reasons: Iterable[str]) -> None:
    """Write the outcome of a session.

    Args:
        outcomes: the id of each test, and one of OUTCOMES.
        reasons: why tests were skipped.
    """
    lines = {"outcomes": [*outcomes], "reasons": [*reasons]}
    folder.joinpath(f"{len([*folder.glob('*.session')])}.session").write_text(json.dumps(lines))


def table(sessions: Iterable[dict[str, list[str]]]) -> list[str]:
    """Return the lines of the summary."""
    layers: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for session in sessions:
        reasons.update(session["reasons"])
        for test, outcome in session["outcomes"]:
            layers.setdefault(_layer(test), Counter())[outcome] += 1
    rows = [("", *OUTCOMES)]
    for layer, counts in sorted(layers.items()):
        rows.append((layer, *(str(counts[outcome] or "") for outcome in OUTCOMES)))
    return [
        *("".join(f"{cell:>9}" if place else f"{cell:8}" for place, cell in enumerate(row))
          for row in rows),
        *(f"skipped: {count} {reason}" for reason, count in sorted(reasons.items())),
    ]  # fmt: skip


def _layer(test: str) -> str:
    folders = test.partition("::")[0].split("/")
    return folders[1] if len(folders) > 2 else "lint"


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).glob("*.session"))
    print("\n".join(table(json.loads(file.read_text()) for file in files)))
