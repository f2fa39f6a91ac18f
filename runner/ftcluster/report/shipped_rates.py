"""Measured speeds of recipes and CPUs, used by plans before the first run on a cluster.

bench/notes/speed.md contains the measurements, and compares predictions with published times.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ShippedRun:
    """Measurements of a recipe with its original model and data.

    Attributes:
        epoch_samples: number of rows of the training data; for SQuAD, windows of 384 tokens.
        tokens: mean number of tokens of a sample, without padding.
        weights: number of weights in the model's matmuls.
        limit_share: fraction of the matmul peak that the run reached, by precision.
    """

    epoch_samples: int
    tokens: float
    weights: int
    limit_share: Mapping[str, float]


# maximum factor between a prediction from these values and a published time of a single host
WITHIN = 2.7
# 12 to 24 steps on two cores of a Xeon with AMX, torch 2.13, on 2026-11-27; the values come from
# the events of these training runs
RUNS: Mapping[str, ShippedRun] = {
    "mrpc": ShippedRun(3_668, 53.9, 85_526_016, {"fp32": 0.71, "bf16": 0.46}),
    "squad": ShippedRun(88_524, 173.0, 42_468_864, {"fp32": 0.76, "bf16": 0.54}),
}
# Matmul GFLOP/s per core by generation and precision, from the same training runs. The values of
# one CPU apply to several generations: all have the same two AVX512 units, and Emerald and Granite
# Rapids also have the same AMX tiles.
AVX512 = {"fp32": 125.0}
AMX = {**AVX512, "bf16": 515.0}
RATES: Mapping[str, Mapping[str, float]] = {
    "Ice Lake": AVX512,
    "Sapphire Rapids": AMX,
    "Emerald Rapids": AMX,
    "Granite Rapids": AMX,
}
