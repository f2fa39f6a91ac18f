"""A logistic regression over embeddings, equivalent to scikit-learn's with default settings."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, logsigmoid

MOST_ITERATIONS = 500


@dataclass(frozen=True)
class LogisticHead:
    """The weights of a logistic regression, in fp64.

    Attributes:
        weight: weights of the classes, shape (classes, width); shape (1, width) for two classes.
        bias: biases of the classes, shape (classes,); shape (1,) for two classes.
    """

    weight: torch.Tensor
    bias: torch.Tensor

    def log_probabilities(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each class for each embedding, shape (texts, classes)."""
        return _log_probabilities(embeddings.double() @ self.weight.T + self.bias)


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    if logits.shape[1] > 1:
        return logits.log_softmax(-1)
    return torch.cat([logsigmoid(-logits), logsigmoid(logits)], dim=1)


def fit_head(embeddings: torch.Tensor, classes: Sequence[int], count: int) -> LogisticHead:
    """Fit a logistic regression with an L2 penalty: half the sum of the squared weights.

    Args:
        embeddings: embeddings of the texts, shape (texts, width).
        classes: class number of each text.
        count: number of classes.
    """
    features, labels = embeddings.detach().double().clone(), torch.tensor(classes)
    outputs = count if count > 2 else 1
    weight = torch.zeros(outputs, features.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=MOST_ITERATIONS, tolerance_grad=1e-9, tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        likely = _log_probabilities(features @ weight.T + bias)
        penalty = weight.square().sum() / 2 / len(labels)
        value: torch.Tensor = cross_entropy(likely, labels) + penalty
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(objective)
    return LogisticHead(weight.detach(), bias.detach())
