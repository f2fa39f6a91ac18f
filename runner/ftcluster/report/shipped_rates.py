"""Recipes and CPUs that ftcluster's authors have measured, for plans before anything ran here.

docs/speed.md says how, and how far predictions from them are off others' published times.
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
        limit_share: the part of the products' speed that it reached, by precision.
    """

    epoch_samples: int
    tokens: float
    weights: int
    limit_share: Mapping[str, float]


RUNS: Mapping[str, ShippedRun] = {}
# GFLOP/s of a core's matrix products, by generation and precision. Two cores of a Xeon with AMX and
# two units for AVX512 (bench/results/2026-11-27-engine.json, -engine-fp32.json); Ice Lake has the
# same units, Emerald and Granite Rapids the same tiles as well.
AVX512, AMX = {"fp32": 140.0}, {"fp32": 140.0, "bf16": 600.0}
RATES: Mapping[str, Mapping[str, float]] = {
    "Ice Lake": AVX512,
    "Sapphire Rapids": AMX,
    "Emerald Rapids": AMX,
    "Granite Rapids": AMX,
}
