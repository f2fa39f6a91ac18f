"""The second half of the task: its loss."""

import torch
from torch.nn import functional

from ftcluster_train.engine.tasks.embed.in_batch_negatives import NEGATIVE, QUERY
from ftcluster_train.engine.tasks.multi_vector.multi_vector_encoding import (
    BatchTokens,
    MultiVectorEncodingTask,
)
from ftcluster_train.engine.tasks.multi_vector.token_vectors import max_similarities
from ftcluster_train.engine.tasks.registry import register

from . import ColbertDistillation


@register
class ColbertDistillationTask(MultiVectorEncodingTask):
    """Trains the scores of a row's texts to have the distribution of a teacher's scores."""

    name = "colbert-distillation"
    fields: ColbertDistillation

    def batch_loss(self, vectors: torch.Tensor, batch: BatchTokens) -> torch.Tensor:  # type: ignore[override]
        texts, of_texts = batch.texts, vectors.split(list(batch.lengths))
        row_of = (texts.kinds == QUERY).cumsum(0) - 1
        row_of_negative = row_of[texts.kinds == NEGATIVE]
        temperature, loss = self.fields.temperature, vectors.sum() * 0
        for row in range(texts.rows.start, texts.rows.stop):
            query, *documents = (of_texts[n] for n in (row_of == row).nonzero()[:, 0].tolist())
            scores = max_similarities([query], documents)[0]
            # the softmax of a teacher's scores follows from their differences
            teacher = -torch.cat([torch.zeros(1), texts.margins[row_of_negative == row].float()])
            loss = loss + temperature**2 * functional.kl_div(
                (scores / temperature).log_softmax(0),
                (teacher / temperature).log_softmax(0),
                reduction="sum",
                log_target=True,
            )
        return loss
