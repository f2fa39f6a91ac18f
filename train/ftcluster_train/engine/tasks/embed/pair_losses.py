"""Losses of scored pairs, triplets and a teacher's scores; correlations of cosines with scores."""

from collections.abc import Callable

import torch
from torch.nn import functional

from ftcluster_common.tasks.embed import MARGIN_MSE, ONLINE
from ftcluster_train.engine.metrics import pearson, spearman
from ftcluster_train.engine.tasks.embed.in_batch_negatives import (
    NEGATIVE,
    POSITIVE,
    QUERY,
    BatchTexts,
)

SMALLEST_RANGE = 1e-8  # added to the range of scores by PyLate's Distillation


def score_loss(
    embeddings: torch.Tensor, texts: BatchTexts, loss: str, scale: float, margin: float
) -> torch.Tensor:
    """Return this rank's part of the loss of a batch of scored pairs.

    The sum over all ranks is the batch's loss times its number of pairs.

    Args:
        embeddings: embeddings of all texts, of length 1, shape (texts, width).
        texts: texts of the batch, a query and a positive in each row; `labels` are the scores.
        loss: cosent, angle, cosine, contrastive or online_contrastive, for sentence-transformers'
            CoSENTLoss, AnglELoss, CosineSimilarityLoss, ContrastiveLoss or OnlineContrastiveLoss.
        scale: factor by which cosent and angle multiply the similarities.
        margin: distance beyond which pairs with score 0 have no loss, for contrastive and
            online_contrastive.
    """
    left, right = (embeddings[texts.kinds == kind] for kind in (QUERY, POSITIVE))
    own = texts.rows
    if loss == "cosine":
        labels = texts.labels[own].float()
        return functional.mse_loss((left[own] * right[own]).sum(1), labels, reduction="sum")
    if loss == "contrastive":
        labels = texts.labels[own].float()
        distances = 1 - (left[own] * right[own]).sum(1)
        apart = functional.relu(margin - distances)
        return (labels * distances.square() + (1 - labels) * apart.square()).sum() / 2
    if loss == ONLINE:
        distances = 1 - (left * right).sum(1)
        return online_contrastive_loss(distances, texts.labels, margin) * (own.stop - own.start)
    similarity = angle_similarity(left, right) if loss == "angle" else (left * right).sum(1)
    # the loss is one value for the whole batch, so each rank returns the share of its rows
    return cosent_loss(scale * similarity, texts.labels) * (own.stop - own.start)


def online_contrastive_loss(
    distances: torch.Tensor, labels: torch.Tensor, margin: float
) -> torch.Tensor:
    """Return the contrastive loss of the hard pairs of a batch, summed over these pairs.

    A pair that matches is hard if it is further apart than the nearest pair that does not match. A
    pair that does not match is hard if it is nearer than the furthest pair that matches. If the
    batch has pairs of only one kind, they are compared with their mean. This is
    sentence-transformers' OnlineContrastiveLoss.

    Args:
        distances: distance of each pair, shape (pairs,).
        labels: 1 for pairs that match, 0 for other pairs, shape (pairs,).
        margin: distance beyond which pairs that do not match have no loss.
    """
    apart, matching = distances[labels == 0], distances[labels == 1]
    near = apart[apart < (matching.max() if len(matching) else apart.mean())]
    far = matching[matching > (apart.min() if len(apart) else matching.mean())]
    return far.square().sum() + functional.relu(margin - near).square().sum()


def triplet_loss(embeddings: torch.Tensor, texts: BatchTexts, margin: float) -> torch.Tensor:
    """Return this rank's part of the triplet loss, the sum over its rows.

    The loss of a triplet is max(0, distance to the positive - distance to the negative + margin),
    where the distance is 1 - cosine. A row's loss is the mean over its negatives. If each row has
    one negative, this is sentence-transformers' TripletLoss with TripletDistanceMetric.COSINE.

    Args:
        embeddings: embeddings of all texts, of length 1, shape (texts, width).
        texts: texts of the batch; a row without a negative has no loss.
    """
    is_negative = texts.kinds == NEGATIVE
    row_of = (texts.kinds == QUERY).cumsum(0)[is_negative] - 1  # row index of each negative
    queries, positives = embeddings[texts.kinds == QUERY], embeddings[texts.kinds == POSITIVE]
    nearest = (queries * positives).sum(1)[row_of]
    other = (queries[row_of] * embeddings[is_negative]).sum(1)
    losses = functional.relu(other - nearest + margin)
    return _mean_of_rows(losses, row_of, texts)


def teacher_loss(
    loss: str,
    scores_of: Callable[[slice], torch.Tensor],
    texts: BatchTexts,
    temperature: float = 1.0,
    normalize: bool = False,
) -> torch.Tensor:
    """Return this rank's part of a loss against a teacher's scores, the sum over its rows.

    The teacher's margins suffice, because neither loss depends on a constant that is added to all
    scores of a row.

    - margin_mse: a row's loss is the mean squared difference between the margins of the model and
      of the teacher, as in sentence-transformers' MarginMSELoss if all rows have the same number of
      negatives. Source: Hofstätter et al. 2020, Improving Efficient Neural Ranking Models with
      Cross-Architecture Knowledge Distillation.
    - distill_kl_div: a row's loss is the Kullback-Leibler divergence of the softmax of the model's
      scores from the softmax of the teacher's scores, times the squared temperature, as in
      sentence-transformers' DistillKLDivLoss. Source: Hinton et al. 2015, Distilling the Knowledge
      in a Neural Network.

    Args:
        loss: margin_mse or distill_kl_div.
        scores_of: function from the range of a row's texts in the batch (query, positive,
            negatives) to the model's scores of the positive and of the negatives, shape (1 +
            negatives,).
        texts: texts of the batch; `margins` contains the teacher's margins.
        temperature: divisor of all scores, for distill_kl_div.
        normalize: True to scale the model's scores of a row to the range from 0 to 1, as in
            PyLate's Distillation, for distill_kl_div.
    """
    total = torch.zeros(())
    for of_row, margins in texts.own_rows():
        scores = scores_of(of_row).float()
        if loss == MARGIN_MSE:
            differences = scores[0] - scores[1:] - margins.to(scores.dtype)
            total = total + differences.square().mean()
            continue
        if normalize:
            lowest, highest = scores.aminmax()
            scores = (scores - lowest) / (highest - lowest + SMALLEST_RANGE)
        wanted = torch.cat([margins.new_zeros(1), -margins]).to(scores.dtype)
        model, teacher = ((values / temperature).log_softmax(0) for values in (scores, wanted))
        divergence = functional.kl_div(model, teacher, reduction="sum", log_target=True)
        total = total + temperature**2 * divergence
    return total


def _mean_of_rows(losses: torch.Tensor, row_of: torch.Tensor, texts: BatchTexts) -> torch.Tensor:
    """Average the losses of each row's negatives, and return the sum over this rank's rows.

    Args:
        losses: loss of each negative, shape (negatives,).
        row_of: row index of each negative, shape (negatives,).
    """
    is_own = (row_of >= texts.rows.start) & (row_of < texts.rows.stop)
    counts = row_of.bincount(minlength=len(texts.labels))
    return (losses / counts[row_of])[is_own].sum()


def cosent_loss(similarities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return log(1 + the sum of exp(s_i - s_j) over all pairs i, j with labels l_i < l_j).

    Source: Su 2022, CoSENT (https://kexue.fm/archives/8847).

    Args:
        similarities: scaled similarities, shape (pairs,).
        labels: scores, shape (pairs,).
    """
    wrong = similarities[:, None] - similarities[None, :]
    wrong = wrong.masked_fill(labels[:, None] >= labels[None, :], -torch.inf)
    return torch.cat([wrong.new_zeros(1), wrong.flatten()]).logsumexp(0)


def angle_similarity(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return |Re + Im| of the inner product of complex vectors, one of them conjugated.

    The first half of an embedding holds the real parts, and the second half the imaginary parts. If
    the width is odd, the last imaginary part is 0. Source: Li and Li 2024, AnglE-optimized Text
    Embeddings. The authors' code takes the absolute value, but the paper does not.

    Args:
        left: embeddings of length 1, shape (pairs, width).
        right: embeddings of length 1, shape (pairs, width).
    """
    odd = left.shape[1] % 2
    (a, b), (c, d) = (
        functional.pad(vectors, (0, odd)).chunk(2, dim=1) for vectors in (left, right)
    )
    return (a * c + b * d + b * c - a * d).sum(1).abs()


def correlations(left: torch.Tensor, right: torch.Tensor, labels: list[float]) -> dict[str, float]:
    """Return correlations of cosines with labels, for pairs of embeddings of length 1."""
    cosines = (left * right).sum(1).tolist()
    return {"spearman": spearman(cosines, labels), "pearson": pearson(cosines, labels)}
