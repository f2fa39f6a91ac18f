"""Losses of preference tuning, as functions of the answers' log-probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy, logsigmoid

from ftcluster_kernels.cross_entropy import token_losses
from ftcluster_train.patching.batch_context import sums_for, token_rows_for

# upper limit of log-probabilities, because the log-odds of probability 1 are infinite
MOST_LIKELY = -float(torch.finfo(torch.float32).eps)


def token_log_probabilities(
    outputs: Any, targets: Mapping[str, torch.Tensor], head: torch.Tensor | None
) -> torch.Tensor:
    """Return the log-probability of each target token, shape (tokens,).

    Args:
        head: weight of the last layer if the model returns hidden states instead of logits; else
            None.
    """
    logits, tokens = outputs.logits.flatten(0, 1)[targets["places"]], targets["tokens"]
    if head is not None:  # `logits` are hidden states
        sums, rows = sums_for(head), token_rows_for(head)
        return -token_losses(logits, head, tokens, sums=sums, rows=rows)
    return -cross_entropy(logits.float(), tokens, reduction="none")


def sums_of(values: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Return the sum of each document's values, shape (documents,).

    Args:
        values: values of all documents, concatenated.
        counts: number of values of each document.
    """
    return torch.stack([part.sum() for part in values.split(list(counts))])


def sigmoid_losses(margins: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return -log sigmoid(margin) for each pair, with label smoothing.

    Args:
        smoothing: assumed fraction of pairs whose labels are swapped.
    """
    preferred = -logsigmoid(margins)
    if not smoothing:
        return preferred
    return (1 - smoothing) * preferred - smoothing * logsigmoid(-margins)


def odds_ratio_losses(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """Return -log sigmoid(log odds ratio) for each pair (Hong et al. 2024, equation 7).

    Args:
        chosen: mean log-probability of a token of each chosen answer.
        rejected: mean log-probability of a token of each rejected answer.
    """
    return -logsigmoid(_log_odds(chosen) - _log_odds(rejected))


def _log_odds(log_probabilities: torch.Tensor) -> torch.Tensor:
    logs = log_probabilities.clamp(max=MOST_LIKELY)
    # log(1 - exp(x)), computed without cancellation on both sides of -log(2)
    near_one = torch.log(-torch.expm1(logs.clamp(min=-1.0)))
    return logs - torch.where(logs > -0.6931, near_one, torch.log1p(-torch.exp(logs)))


def prospect_losses(gains: torch.Tensor, is_good: torch.Tensor, divergence: float) -> torch.Tensor:
    """Return the loss of each answer (KTO, Ethayarajh et al. 2024, equation 7).

    Args:
        gains: log-probability ratio between the trained and the initial model for each answer,
            times beta.
        is_good: True for each answer that users liked.
        divergence: estimated KL divergence from the initial model, times beta; at least 0.
    """
    distance = gains - divergence
    return 1 - torch.sigmoid(torch.where(is_good, distance, -distance))
