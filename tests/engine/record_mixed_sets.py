"""Writes how sentence-transformers and datasets mix data sets of some sizes, for tests to compare.

    PYTHONPATH=SITE python tests/engine/record_mixed_sets.py

SITE has sentence-transformers 6.2, datasets, and what they need.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import sentence_transformers
import torch
from sentence_transformers.base.sampler import ProportionalBatchSampler, RoundRobinBatchSampler
from torch.utils.data import BatchSampler, ConcatDataset, SequentialSampler

FILE = Path(__file__).with_name("mixed_sets.json")
BATCH = 8
SIZES = [[100, 30, 10], [16, 16], [7, 90], [24, 23, 22, 21]]
WEIGHTS = [[3, 1, 1], [1, 1], [1, 9], [4, 3, 2, 1]]


def batches(kind: Any, sizes: list[int], drop_last: bool) -> list[list[int]]:
    """The number of the data set, and the number of rows, of each batch of an epoch."""
    parts = [datasets.Dataset.from_dict({"set": [n] * size}) for n, size in enumerate(sizes)]
    samplers = [BatchSampler(SequentialSampler(part), BATCH, drop_last) for part in parts]
    whole = ConcatDataset(parts)
    sampler = kind(whole, samplers, generator=torch.Generator(), seed=1)
    return [[int(whole[batch[0]]["set"]), len(batch)] for batch in sampler]


def drawn(sizes: list[int], weights: list[int]) -> list[int]:
    """The rows of each data set that interleave_datasets takes until the first is exhausted."""
    parts = [datasets.Dataset.from_dict({"set": [n] * size}) for n, size in enumerate(sizes)]
    shares = [weight / sum(weights) for weight in weights]
    mixed = datasets.interleave_datasets(parts, probabilities=shares, seed=1)
    counts = Counter(mixed["set"])
    return [counts[number] for number in range(len(sizes))]


def main() -> None:
    """Write the file."""
    cases = []
    for sizes, weights in zip(SIZES, WEIGHTS, strict=True):
        for drop_last in (False, True):
            cases.append(
                {
                    "sizes": sizes,
                    "batch_size": BATCH,
                    "drop_last": drop_last,
                    "proportional": batches(ProportionalBatchSampler, sizes, drop_last),
                    "round_robin": batches(RoundRobinBatchSampler, sizes, drop_last),
                    "weights": weights,
                    "interleaved": drawn([size * 100 for size in sizes], weights),
                }
            )
    versions = {
        "sentence-transformers": sentence_transformers.__version__,
        "datasets": datasets.__version__,
    }
    FILE.write_text(json.dumps({"versions": versions, "cases": cases}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
