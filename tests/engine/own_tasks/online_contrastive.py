"""A loss for pairs that match or not, which learns only from hard pairs, for --task.

    ftcluster train --task online_contrastive.py --data duplicates.csv --model all-MiniLM-L6-v2

The score of a pair is 1 if its texts match, and 0 if they do not.
"""

from dataclasses import dataclass
from typing import Literal

from ftcluster_common.tasks.embed import SentenceSimilarity, SentenceSimilaritySpec
from ftcluster_common.tasks.registry import register


@dataclass(frozen=True)
class OnlineContrastive(SentenceSimilarity):
    """The fields of sentence-similarity, with the loss that reads scores of 0 and 1."""

    loss: Literal["contrastive"] = "contrastive"  # type: ignore[assignment]


class OnlineContrastiveSpec(SentenceSimilaritySpec):
    """Declares the task like sentence-similarity, with another loss."""

    name = "online-contrastive"
    fields = OnlineContrastive
    pipeline = "sentence-similarity"


register(OnlineContrastiveSpec())


def on_hosts() -> None:
    """Register the class of the task."""
    import torch

    from ftcluster_train.engine.tasks.embed.in_batch_negatives import POSITIVE, QUERY, BatchTexts
    from ftcluster_train.engine.tasks.embed.sentence_similarity import SentenceSimilarityTask
    from ftcluster_train.engine.tasks.registry import register

    @register
    class OnlineContrastiveTask(SentenceSimilarityTask):
        name = "online-contrastive"
        options: OnlineContrastive

        def batch_loss(self, vectors: torch.Tensor, batch: BatchTexts) -> torch.Tensor:
            left, right = (vectors[batch.kinds == kind] for kind in (QUERY, POSITIVE))
            distances = 1 - (left * right).sum(1)
            apart, same = distances[batch.labels == 0], distances[batch.labels == 1]
            hard = apart[apart < (same.max() if len(same) else apart.mean())]
            far = same[same > (apart.min() if len(apart) else same.mean())]
            missing = torch.relu(self.options.least_margin - hard)
            # the loss is one value for the whole batch, so each rank returns its rows' share
            share = batch.rows.stop - batch.rows.start
            return (far.square().sum() + missing.square().sum()) * share
