"""Training of sparse encoders (SPLADE), in the format of sentence-transformers' SparseEncoder."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForMaskedLM

from ftcluster_common.data.data_files import DataError
from ftcluster_common.models.sentence_modules import SPLADE, SentenceModules, read_modules
from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.sparse import SparseEncoding
from ftcluster_train.engine.data.token_samples import Sample, Samples
from ftcluster_train.engine.tasks.base import COMPARED_TOKENS, Forward
from ftcluster_train.engine.tasks.embed.corpus_search import Comparison
from ftcluster_train.engine.tasks.embed.in_batch_negatives import (
    QUERY,
    BatchTexts,
    ranking_loss,
)
from ftcluster_train.engine.tasks.embed.pair_losses import teacher_loss
from ftcluster_train.engine.tasks.embed.sentence_similarity import (
    DIGITS,
    SentenceSimilarityTask,
    dot_products,
)
from ftcluster_train.engine.tasks.embed.vectors import count_of
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.engine.tasks.sparse.sparse_vectors import comparison, decoded, encoded
from ftcluster_train.engine.tasks.sparse.splade_pooling import pooled_logits, splade_vectors
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import KernelMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@register
class SparseEncodingTask(SentenceSimilarityTask):
    """Trains vectors with one weight per vocabulary token, which are compared by dot product.

    Rows, samples and negatives are the same as in the task sentence-similarity. `options` contains
    the fields of that task, and `sparse` contains the fields of the recipe.
    """

    name = "sparse-encoding"
    model_class = AutoModelForMaskedLM
    has_head = True
    trains_head = False
    large_vocabulary = True
    biased_head = True
    compared_queries = 256
    modules = SentenceModules(SPLADE, normalize=False, similarity="dot")
    compares_dots = True

    def __init__(self, recipe: Recipe, *others: Any) -> None:
        super().__init__(recipe, *others)
        assert isinstance(recipe.options, SparseEncoding)
        self.sparse = recipe.options
        pairs: dict[str, Any] = {}
        for name, options in self._options.items():
            assert isinstance(options, SparseEncoding)
            pairs[name] = options.pairs
        self._options, self.options = pairs, pairs[self._data_set]
        self._bias: torch.Tensor | None = None
        self._regularized = 1.0  # fraction of the regularizer weights to use in this step

    @classmethod
    def serves(cls, recipe: Recipe, purpose: Purpose) -> bool:  # noqa: ARG003
        return True

    # model

    def modules_of(self, folder: Path) -> SentenceModules:
        """Return the modules in a model's folder."""
        try:
            return (read_modules(folder, True) if folder.is_absolute() else None) or self.modules
        except DataError as error:
            raise TrainError(
                str(error), "use a masked language model, or a SPLADE model of this kind"
            ) from None

    def check_model(self, model: "PreTrainedModel") -> None:
        super().check_model(model)
        layer = model.get_output_embeddings()
        weight = None if layer is None else layer.weight
        self.width = int(model.config.vocab_size if weight is None else weight.shape[0])

    def saved_modules(self, folder: Path) -> SentenceModules | None:
        return read_modules(folder, True)

    def use_fused_loss(self, model: "PreTrainedModel") -> torch.Tensor | None:
        self._bias = getattr(model.get_output_embeddings(), "bias", None)
        return super().use_fused_loss(model)

    def evaluation_kernels(self, model: "PreTrainedModel") -> KernelMode:
        self._bias = getattr(model.get_output_embeddings(), "bias", None)
        return super().evaluation_kernels(model)

    def inputs_to_compare(self, samples: Sequence[Sample]) -> dict[str, Any]:
        return {"input_ids": torch.tensor([samples[0]["input_ids"][:COMPARED_TOKENS]])}

    # training

    def start_step(self, step: int, steps: int) -> None:
        self._regularized = self.sparse.regularizer_share(step, steps)

    def vectors(self, samples: Sequence[Sample], forward: Forward) -> torch.Tensor:
        """Return the sparse vectors of the rows' texts, shape (texts, vocabulary)."""
        groups, places = self.group_texts(samples)
        pooled = [self._pooled(*forward(group), self.head) for group in groups]
        return torch.cat(pooled)[places]

    def _pooled(
        self, outputs: Any, targets: Mapping[str, torch.Tensor], head: torch.Tensor | None
    ) -> torch.Tensor:
        """Return one vector for each text.

        Args:
            head: weight of the last layer if the model has returned hidden states, else None.
        """
        if head is None:
            return pooled_logits(outputs.logits, targets["tokens"])
        return splade_vectors(outputs.logits, targets["tokens"], head, self._bias)

    def batch_loss(self, vectors: torch.Tensor, batch: BatchTexts) -> torch.Tensor:
        if self.options.reads_margins:
            scores_of = partial(dot_products, vectors)
            loss = teacher_loss(self.sparse.loss, scores_of, batch, self.sparse.temperature)
        else:
            loss = ranking_loss(vectors, batch, self.sparse.scale, symmetric=False)
        is_query = batch.kinds == QUERY
        regularizer = self.sparse.query_regularizer_weight * flops(vectors[is_query])
        regularizer += self.sparse.document_regularizer_weight * flops(vectors[~is_query])
        # the regularizer is one value for the whole batch, so each rank adds the share of its rows
        return loss + self._regularized * regularizer * (batch.rows.stop - batch.rows.start)

    # predictions

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return the vector of each text, as base64 of its indices and weights."""
        targets = self.collate(samples).targets
        return list(encoded(self._pooled(outputs, targets, self.evaluation_head)))

    def compare(self, documents: Sequence[Any]) -> Comparison:
        """Return the comparison of queries with the documents that have these predictions."""
        return comparison(documents, self.width)

    def elements(self, prediction: Any) -> int:
        """Return the number of nonzero elements of a prediction's vector."""
        return count_of(prediction[1])

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return retrieval metrics by dot product, and the mean number of nonzero elements."""
        [retrieved] = predictions
        return {
            **super().score(predictions, samples),
            "query_active_dims": retrieved.query_elements,
            "document_active_dims": retrieved.document_elements,
        }

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:  # noqa: ARG002
        [retrieved] = predictions
        of_kind = {"queries": retrieved.query_elements, "documents": retrieved.document_elements}
        for kind, elements in of_kind.items():
            if not elements:
                return (
                    f"all vectors of {kind} are empty, so the search finds nothing: use a smaller "
                    "regularizer weight"
                )
        return ""

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """Return the token weights of the text in each row, largest weight first."""
        return [{"prediction": self._by_token(*decoded(vector))} for vector in predictions]

    def _by_token(self, indices: torch.Tensor, weights: torch.Tensor) -> dict[str, float]:
        order = weights.argsort(descending=True, stable=True)
        ids = indices[order].tolist()
        names = self.tokenizer.convert_ids_to_tokens(ids)
        values = (round(weight, DIGITS) for weight in weights[order].tolist())
        # a model may have more embeddings than its tokenizer has tokens
        return {
            str(number) if name is None else name: value
            for number, name, value in zip(ids, names, values, strict=True)
        }


def flops(vectors: torch.Tensor) -> torch.Tensor:
    """Return the sum, over the elements, of the squared mean over the vectors (Paria et al. 2020).

    The sum estimates the number of multiplications in a search. It is 0 if there are no vectors.
    """
    return vectors.mean(0).square().sum() if len(vectors) else vectors.new_zeros(())
