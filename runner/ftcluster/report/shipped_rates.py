"""Recipes and CPUs that ftcluster's authors have measured, for plans before anything ran here.

bench/notes/speed.md has the measurements, and how far predictions from them are off published
times.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ShippedRun:
    """What a recipe with its own model and data takes.

    Attributes:
        epoch_samples: rows of the training data; of SQuAD, parts of 384 tokens.
        tokens: mean of a sample's, without padding.
        weights: in the model's matrix products.
        limit_share: the share of the matmul peak that it reached, by precision.
    """

    epoch_samples: int
    tokens: float
    weights: int
    limit_share: Mapping[str, float]


# how far predictions of this kind are off what others have published of single hosts, a factor
WITHIN = 2.7
# 12 to 24 steps on two cores of a Xeon with AMX, torch 2.13, on 2026-11-27, as the events of these
# trainings have them
RUNS: Mapping[str, ShippedRun] = {
    "mrpc": ShippedRun(3_668, 53.9, 85_526_016, {"fp32": 0.71, "bf16": 0.46}),
    "squad": ShippedRun(88_524, 173.0, 42_468_864, {"fp32": 0.76, "bf16": 0.54}),
}
# GFLOP/s of a core's matrix products, by generation and precision, of the same trainings. Ice Lake
# has the same two units for AVX512, Emerald and Granite Rapids the same tiles as well.
AVX512 = {"fp32": 125.0}
AMX = {**AVX512, "bf16": 515.0}
RATES: Mapping[str, Mapping[str, float]] = {
    "Ice Lake": AVX512,
    "Sapphire Rapids": AMX,
    "Emerald Rapids": AMX,
    "Granite Rapids": AMX,
}
