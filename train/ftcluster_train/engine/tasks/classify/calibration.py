"""Calibration of class probabilities with a temperature, and the calibration error.

The temperature divides all logits, so it does not change which class is the most likely. Source:
Guo et al. 2017, On Calibration of Modern Neural Networks, https://arxiv.org/abs/1706.04599.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from transformers import PretrainedConfig

from ftcluster_common.protocol.class_report import ClassReport
from ftcluster_train.engine.adapters import TEMPERATURE

BINS = 15  # as in the paper
LOWEST, HIGHEST = 0.05, 20.0  # without limits, 0 would be best if all rows are correct
HALVINGS = 50
DIGITS = 6  # significant digits of a temperature

Rows = Sequence[Sequence[float]]


class Temperature:
    """The temperature of a model.

    Args:
        trained: configuration of a trained model, which may contain a temperature; None for a new
            model.

    Attributes:
        value: divisor of the logits; None if the probabilities are not calibrated.
    """

    def __init__(self, trained: PretrainedConfig | None) -> None:
        value = getattr(trained, TEMPERATURE, None)
        is_valid = isinstance(value, int | float) and 0 < value < math.inf
        self.value: float | None = value if is_valid else None

    def choose(self, logits: Rows, labels: Sequence[int]) -> None:
        """Set the temperature to the value that maximizes the likelihood of the labels."""
        self.value = best_temperature(logits, labels)

    @property
    def doubt(self) -> str:
        """A reason to distrust the temperature; "" if there is none."""
        if self.value not in (LOWEST, HIGHEST):
            return ""
        why = "the logits do not separate the classes"
        if self.value == LOWEST:
            why = "all rows are predicted correctly"
        return f"the temperature is at its limit {self.value:g}, because {why}; use more rows"

    def use(self, reports: Iterator[ClassReport]) -> None:
        """Use the temperature from the class reports of an evaluation."""
        for report in reports:
            self.value = report.temperature

    def probabilities(self, logits: Rows) -> list[list[float]]:
        """Return the calibrated probabilities of each row's classes."""
        rows: list[list[float]] = probabilities(logits, self.value or 1.0).tolist()
        return rows


def probabilities(logits: Rows, temperature: float = 1.0) -> torch.Tensor:
    """Return the probabilities of each row's classes, in fp64."""
    return (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(dim=-1)


def best_temperature(logits: Rows, labels: Sequence[int]) -> float:
    """Return the temperature with the lowest negative log-likelihood of the labels.

    The loss is convex in the inverse temperature, so bisection finds the only zero of its
    derivative. At this zero, the expected logit equals the mean logit of the labels.

    >>> best_temperature([[0.0, 8.0], [0.0, 8.0], [0.0, 8.0], [0.0, 8.0]], [1, 1, 1, 0])
    7.28191
    """
    rows = torch.tensor(logits, dtype=torch.float64)
    wanted = rows[torch.arange(len(rows)), torch.tensor(labels)].mean()
    low, high = 1 / HIGHEST, 1 / LOWEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        expected = ((rows * middle).softmax(dim=-1) * rows).sum(dim=-1).mean()
        low, high = (low, middle) if expected > wanted else (middle, high)
    return float(f"{1 / high:.{DIGITS}g}")


def calibration_error(probabilities: torch.Tensor, labels: Sequence[int]) -> float:
    """Return the expected calibration error, computed over BINS equal confidence intervals.

    The confidence is the probability of the most likely class. The error is the mean absolute
    difference between confidence and accuracy over the intervals, weighted by their numbers of
    rows.

    Args:
        probabilities: probabilities of the classes, shape (rows, classes).
    """
    confidence, chosen = probabilities.max(dim=-1)
    right = (chosen == torch.tensor(labels)).double()
    intervals = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    difference = torch.zeros(BINS, dtype=torch.float64)
    difference.index_add_(0, intervals, confidence - right)
    return float(difference.abs().sum() / len(right))
