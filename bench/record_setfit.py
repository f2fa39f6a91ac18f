"""Trains SetFit on few generated rows, and writes its accuracies for a comparison.

    PYTHONPATH=train:common SITE/bin/python -m bench.record_setfit MODEL FILE [SEED ...]

SITE is a virtual environment with setfit; MODEL is the folder of an embedder. FILE gets a JSON
document with the rows, so that `bench.few_shot` trains on the same rows.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import setfit
import transformers
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments

from bench.few_shot_rows import ITERATIONS, rows_of


def main(model: str, file: str, *seeds: str) -> None:
    results: list[dict[str, Any]] = []
    for seed in map(int, seeds or ("1", "2", "3")):
        train, test = rows_of(seed)
        names = sorted({row["label"] for row in train})
        sets = [
            Dataset.from_list([{"text": r["text"], "label": names.index(r["label"])} for r in rows])
            for rows in (train, test)
        ]
        classifier = SetFitModel.from_pretrained(model, labels=names)
        before = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:  # the default is the current folder
            settings = TrainingArguments(
                folder, seed=seed, num_iterations=ITERATIONS, report_to="none"
            )
            Trainer(model=classifier, args=settings, train_dataset=sets[0]).train()
        seconds = time.perf_counter() - before
        predicted = classifier.predict([row["text"] for row in test])
        right = [str(p) == row["label"] for p, row in zip(predicted, test, strict=True)]
        results.append({"seed": seed, "accuracy": sum(right) / len(right), "seconds": seconds})
    versions = {"setfit": setfit.__version__, "transformers": transformers.__version__}
    Path(file).write_text(json.dumps({"versions": versions, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
