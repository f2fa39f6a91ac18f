"""The task sparse-encoding: training vectors with a weight per vocabulary token (SPLADE)."""

from dataclasses import dataclass
from typing import Literal

from ftcluster_common.limits import limited
from ftcluster_common.tasks.retrieval import RetrievalOptions, RetrievalSpec


@dataclass(frozen=True)
class SparseEncoding(RetrievalOptions):
    """Trains sparse vectors (SPLADE, Formal et al. 2021) for search engines with an inverted index.

    For each token of a text, a masked language model computes a logit for each token of the
    vocabulary. Each element of the text's vector is the maximum of log(1 + relu(logit)) over the
    text's tokens. The loss is sentence-transformers' SpladeLoss with
    SparseMultipleNegativesRankingLoss. A query's negatives are all texts in the batch, on all
    ranks, that do not belong to the query.

    Attributes:
        query_column: column with queries. Default: detected from the column names.
        positive_column: column with the text that matches the query. Default: detected from the
            column names.
        negative_columns: columns with texts, or lists of texts, that do not match the query.
            Default: all columns named negative, negatives, negative_1 and so on.
        max_length: maximum number of tokens of a text; longer texts are truncated.
        query_prompt: prompt that is put before each query. Default: the model's prompt for queries,
            or its default prompt if it has no such prompt. `ftcluster predict` uses only the
            default prompt.
        text_prompt: prompt that is put before each text that is not a query. Default: the model's
            prompt for documents, or its default prompt if it has no such prompt.
        loss: loss function. `ranking` is the loss above. The others train on a teacher's scores of
            the texts in a row: `margin_mse` (SparseMarginMSELoss) on the differences between these
            scores, and `distill_kl_div` (SparseDistillKLDivLoss) on their softmax.
        label_column: column with a teacher's scores: a list with the score of the query's text,
            followed by the scores of the negatives; or the margins of the negatives (score of the
            query's text minus score of the negative). Default: detected from the column names.
        temperature: divisor of the scores of the model and of the teacher, for distill_kl_div.
        scale: factor by which dot products are multiplied: the inverse of the temperature.
        query_regularizer_weight: weight of the FLOPS regularizer of queries: the mean of each
            vector element is squared, and the squares are summed. With a larger weight, query
            vectors contain fewer tokens.
        document_regularizer_weight: weight of the same regularizer for all texts that are not
            queries.
        regularizer_warmup_ratio: fraction of the steps over which both regularizer weights rise
            from 0, proportionally to the square of the step number.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
    """

    query_column: str | None = None
    positive_column: str | None = None
    negative_columns: tuple[str, ...] = ()
    max_length: int = limited(256, at_least=3)
    query_prompt: str | None = None
    text_prompt: str | None = None
    loss: Literal["ranking", "margin_mse", "distill_kl_div"] = "ranking"
    label_column: str | None = None
    temperature: float = limited(1.0, above=0)
    scale: float = limited(1.0, above=0)
    query_regularizer_weight: float = limited(5e-5, at_least=0)
    document_regularizer_weight: float = limited(3e-5, at_least=0)
    regularizer_warmup_ratio: float = limited(1 / 3, at_least=0, at_most=1)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)

    def regularizer_share(self, step: int, steps: int) -> float:
        """Return the factor of the regularizer weights in a step, as in sentence-transformers.

        Args:
            step: number of the step, counted from 1.
            steps: total number of training steps.

        >>> [SparseEncoding().regularizer_share(step, 6) for step in (1, 2, 3, 6)]
        [0.0, 0.25, 1.0, 1.0]
        """
        if not self.regularizer_warmup_ratio:
            return 1.0
        rising = max(int(steps * self.regularizer_warmup_ratio), 1)
        return min((step - 1) / rising, 1.0) ** 2


class SparseEncodingSpec(RetrievalSpec[SparseEncoding]):
    """The declaration of the task sparse-encoding."""

    name = "sparse-encoding"
    fields = SparseEncoding
    recipe = "sparse"
    predicts_tokens = True
    is_sparse_encoder = True
    adapter_type = ""
    training_fields = (
        *RetrievalSpec.training_fields,
        "query_regularizer_weight", "document_regularizer_weight", "regularizer_warmup_ratio",
    )  # fmt: skip

    def metric_names(self, options: SparseEncoding) -> tuple[str, ...]:
        """Return the names of retrieval metrics and of the mean number of tokens in a vector."""
        return (*super().metric_names(options), "query_active_dims", "document_active_dims")
