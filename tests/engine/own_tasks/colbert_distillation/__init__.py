"""Distillation of a teacher's scores into a multi-vector encoder (ColBERT), for --task.

    ftcluster train --task colbert_distillation --data scored.jsonl --model my-colbert

A row has a query, the text that belongs to it, negatives, and a list with the teacher's scores of
all these texts, the text of the query first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.limits import limited
from ftcluster_common.tasks.embed import SentenceSimilarity, SentenceSimilaritySpec
from ftcluster_common.tasks.multi_vector import MultiVectorEncoding, MultiVectorEncodingSpec
from ftcluster_common.tasks.registry import register


@dataclass(frozen=True)
class ColbertDistillation(MultiVectorEncoding):
    """The fields of multi-vector-encoding, and those of a teacher's scores.

    Attributes:
        label_column: column with the teacher's scores. Default: detected from the column names.
        temperature: divisor of the scores of model and teacher.
    """

    label_column: str | None = None
    temperature: float = limited(1.0, above=0)

    @property
    def pairs(self) -> SentenceSimilarity:
        """The same settings as fields of sentence-similarity, with the loss that reads scores."""
        return replace(super().pairs, label_column=self.label_column, loss="margin_mse")


class ColbertDistillationSpec(MultiVectorEncodingSpec):
    """Declares the task like multi-vector-encoding, with a column of scores."""

    name = "colbert-distillation"
    fields = ColbertDistillation
    training_fields = (*MultiVectorEncodingSpec.training_fields, "temperature")

    def columns(
        self, options: ColbertDistillation, columns: Sequence[str], answered: bool
    ) -> Columns:
        """Return the columns of pairs and of scores, or of single texts for predictions."""
        return SentenceSimilaritySpec().columns(options.pairs, columns, answered)


register(ColbertDistillationSpec())


def on_hosts() -> None:
    """Register the class of the task."""
    from . import training  # noqa: F401 - it registers the class
