"""Writes seqeval's results for random tags into tests/unit/engine/tasks/ner/seqeval.json.

pip install seqeval==1.2.2
python tests/seqeval_figures.py
"""

import json
import random
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "unit/engine/tasks/ner/seqeval.json"
ROWS = 30
KINDS = ("PER", "LOC", "MISC")


def drawn(seed: int, prefixes: str) -> list[list[str]]:
    """Return rows of random tags, most of them in no scheme."""
    draw = random.Random(seed)
    tags = ["O", "O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in KINDS)]
    return [[draw.choice(tags) for _ in range(draw.randrange(1, 14))] for _ in range(ROWS)]


def disturbed(rows: list[list[str]], seed: int) -> list[list[str]]:
    """Return the same rows with some tags from other places."""
    draw = random.Random(seed)
    return [[draw.choice(row) if draw.random() < 0.3 else tag for tag in row] for row in rows]


def main() -> None:
    """Write the results of both modes."""
    from seqeval.metrics import accuracy_score, classification_report
    from seqeval.scheme import IOBES

    found: dict[str, Any] = {}
    for name, prefixes, mode in (
        ("IOB2", "BI", {}),
        ("IOBES", "BIES", {"mode": "strict", "scheme": IOBES}),
    ):
        true = drawn(1, prefixes)
        predicted = disturbed(true, 2)
        report = classification_report(true, predicted, output_dict=True, zero_division=0, **mode)
        found[name] = {
            "true": [" ".join(row) for row in true],
            "predicted": [" ".join(row) for row in predicted],
            "accuracy": accuracy_score(true, predicted),
            "report": {
                kind: {figure: float(value) for figure, value in row.items()}
                for kind, row in report.items()
            },
        }
    FIGURES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
