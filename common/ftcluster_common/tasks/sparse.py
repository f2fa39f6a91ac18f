"""The task sparse-encoding: training vectors with a weight per vocabulary token (SPLADE)."""

from collections.abc import Sequence
from dataclasses import dataclass

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.row_checks import CheckRow
from ftcluster_common.limits import limited
from ftcluster_common.tasks.embed import SentenceSimilarity, SentenceSimilaritySpec
from ftcluster_common.tasks.spec import RETRIEVAL_METRICS, Options, TaskSpec

_PAIRS = SentenceSimilaritySpec()  # reads rows in the same format


@dataclass(frozen=True)
class SparseEncoding(Options):
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
    scale: float = limited(1.0, above=0)
    query_regularizer_weight: float = limited(5e-5, at_least=0)
    document_regularizer_weight: float = limited(3e-5, at_least=0)
    regularizer_warmup_ratio: float = limited(1 / 3, at_least=0, at_most=1)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)

    @property
    def pairs(self) -> SentenceSimilarity:
        """The same settings as fields of sentence-similarity, a task that reads the same rows."""
        return SentenceSimilarity(
            query_column=self.query_column,
            positive_column=self.positive_column,
            negative_columns=self.negative_columns,
            max_length=self.max_length,
            query_prompt=self.query_prompt,
            text_prompt=self.text_prompt,
            loss="ranking",
            scale=self.scale,
            validation_split_percentage=self.validation_split_percentage,
        )

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


class SparseEncodingSpec(TaskSpec[SparseEncoding]):
    """The declaration of the task sparse-encoding."""

    name = "sparse-encoding"
    fields = SparseEncoding
    recipe = "sparse"
    pipeline = "feature-extraction"
    predicts_tokens = True
    is_sparse_encoder = True
    training_fields = (
        *TaskSpec.training_fields,
        "scale", "query_regularizer_weight", "document_regularizer_weight",
        "regularizer_warmup_ratio",
    )  # fmt: skip

    def columns(self, options: SparseEncoding, columns: Sequence[str], answered: bool) -> Columns:
        """Return the columns of pairs, or of single texts for predictions."""
        uses = dict(_PAIRS.columns(options.pairs, columns, answered))
        uses.pop("label", None)  # the loss does not use scores of pairs
        return uses

    def row_check(
        self, options: SparseEncoding, answered: bool, columns: Sequence[str]
    ) -> CheckRow:
        """Return a check that a row contains a valid pair, or a single text."""
        return _PAIRS.row_check(options.pairs, answered, columns)

    def row_form(self, options: SparseEncoding, answered: bool) -> str:
        """Describe a row that contains a pair of texts, or a single text."""
        if not answered:
            return _PAIRS.row_form(options.pairs, answered)
        query, positive = options.query_column or "query", options.positive_column or "positive"
        return (
            f"each row has {query}, {positive} (the text that belongs to the query) and optional "
            "negatives (texts that do not)"
        )

    def metric_names(self, options: SparseEncoding) -> tuple[str, ...]:
        """Return the names of retrieval metrics and of the mean number of tokens in a vector."""
        recalls = ("recall_at_10", "recall_at_100")
        return (*RETRIEVAL_METRICS, *recalls, "query_active_dims", "document_active_dims")

    def smooths_labels(self, options: SparseEncoding) -> bool:
        """Return False, because there are no classes."""
        return False

    def compares_batch(self, options: SparseEncoding) -> bool:
        """Return True, because the other rows of the batch contain negatives of a query."""
        return True

    def reads_modules(self, options: SparseEncoding) -> bool:
        """Return True, because the training uses the prompts of a SPLADE model."""
        return True

    def texts_of_a_sample(self, options: SparseEncoding) -> int:
        """Return the number of texts per row, without negatives in columns detected by name."""
        return 2 + len(options.negative_columns)
