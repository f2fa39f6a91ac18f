"""Your own loss for a task of ftcluster, for --task: the focal loss (Lin et al. 2017).

    ftcluster train --task focal_loss.py --data reviews.csv --model google-bert/bert-base-uncased \\
        gamma=1.5

The data have the same format as for text-classification, with one class for each text.
"""

from dataclasses import dataclass
from typing import Any

from ftcluster_common.limits import limited
from ftcluster_common.tasks.classify import TextClassification, TextClassificationSpec
from ftcluster_common.tasks.registry import register


@dataclass(frozen=True)
class FocalClassification(TextClassification):
    """The fields of text-classification, and one more.

    Attributes:
        gamma: exponent that lowers the weight of well-classified samples; 0 is cross entropy.
    """

    gamma: float = limited(2.0, at_least=0)


class FocalSpec(TextClassificationSpec):
    """Declares the task like text-classification, but with other fields."""

    name = "focal-classification"
    fields = FocalClassification
    pipeline = "text-classification"  # name in transformers


register(FocalSpec())


def on_hosts() -> None:
    """Register the class of the task."""
    import torch
    from torch.nn.functional import cross_entropy

    from ftcluster_train.engine.tasks.classify.text_classification import TextClassificationTask
    from ftcluster_train.engine.tasks.registry import register

    @register
    class FocalTask(TextClassificationTask):
        name = "focal-classification"
        options: FocalClassification

        def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
            losses = cross_entropy(outputs.logits.float(), targets["labels"], reduction="none")
            return ((1 - torch.exp(-losses)) ** self.options.gamma * losses).sum()
