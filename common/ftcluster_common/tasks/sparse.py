"""The task sparse-encoding: vectors (SPLADE) with a weight for each token of the vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.row_checks import CheckRow
from ftcluster_common.limits import limited
from ftcluster_common.tasks.embed import SentenceSimilarity, SentenceSimilaritySpec
from ftcluster_common.tasks.spec import RETRIEVAL_METRICS, Options, TaskSpec

_PAIRS = SentenceSimilaritySpec()  # reads the same rows


@dataclass(frozen=True)
class SparseEncoding(Options):
    """Trains sparse vectors (SPLADE, Formal et al. 2021) for search engines with an inverted index.

    A masked language model gives each token of a text a logit for each token of the vocabulary. The
    text's vector is the largest log(1 + relu(logit)) over its tokens. The loss is
    sentence-transformers' SpladeLoss with SparseMultipleNegativesRankingLoss; a query's negatives
    are all texts of the batch, on all ranks, that do not belong to the query.

    Attributes:
        query_column: column with queries. Default: found by its name.
        positive_column: column with the text that belongs to the query. Default: found by its name.
        negative_columns: columns with texts, or lists of texts, that do not belong to the query.
            Default: all that are called negative, negatives, negative_1 and so on.
        max_length: maximum tokens of a text; longer ones are cut.
        query_prompt: text before each query. Default: the model's prompt for queries, else its
            default prompt; `ftcluster predict` uses the default prompt alone.
        text_prompt: text before each text that is not a query. Default: the model's prompt for
            documents, else its default prompt.
        scale: multiplier of the dot products, which is the inverse of the temperature.
        query_regularizer_weight: weight of the FLOPS regularizer of queries, the sum of the squared
            means of each vector element. A larger weight gives queries with fewer tokens.
        document_regularizer_weight: weight of the same regularizer of all other texts.
        regularizer_warmup_ratio: share of the steps in which both weights rise from 0, with the
            square of the step.
        validation_split_percentage: share in percent of the rows that become the validation set if
            the data have none.
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
        """The fields as fields of the task sentence-similarity, which reads the same rows."""
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
        """Return the share of the regularizer weights in a step: sentence-transformers' schedule.

        Args:
            step: number of the step, counted from 1.
            steps: number of steps of the training.

        >>> [SparseEncoding().regularizer_share(step, 6) for step in (1, 2, 3, 6)]
        [0.0, 0.25, 1.0, 1.0]
        """
        if not self.regularizer_warmup_ratio:
            return 1.0
        rising = max(int(steps * self.regularizer_warmup_ratio), 1)
        return min((step - 1) / rising, 1.0) ** 2


class SparseEncodingSpec(TaskSpec[SparseEncoding]):
    """The declaration of the training of sparse encoders."""

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
        """Find pairs of texts, or the single texts of a prediction."""
        uses = dict(_PAIRS.columns(options.pairs, columns, answered))
        uses.pop("label", None)  # scores of pairs are not read
        return uses

    def row_check(
        self, options: SparseEncoding, answered: bool, columns: Sequence[str]
    ) -> CheckRow:
        """Return a check that a row's pair can be read, or that a row has a text."""
        return _PAIRS.row_check(options.pairs, answered, columns)

    def row_form(self, options: SparseEncoding, answered: bool) -> str:
        """Describe a row with a pair of texts, or with a single text."""
        if not answered:
            return _PAIRS.row_form(options.pairs, answered)
        query, positive = options.query_column or "query", options.positive_column or "positive"
        return (
            f"each row has {query}, {positive} (the text that belongs to the query) and optional "
            "negatives (texts that do not)"
        )

    def metric_names(self, options: SparseEncoding) -> tuple[str, ...]:
        """Return the metrics of the search, and the mean numbers of tokens in a vector."""
        recalls = ("recall_at_10", "recall_at_100")
        return (*RETRIEVAL_METRICS, *recalls, "query_active_dims", "document_active_dims")

    def smooths_labels(self, options: SparseEncoding) -> bool:
        """Return False: there are no classes."""
        return False

    def compares_batch(self, options: SparseEncoding) -> bool:
        """Return True: the negatives of a query are in the whole batch."""
        return True

    def reads_modules(self, options: SparseEncoding) -> bool:
        """Return True: the prompts of a SPLADE model are used."""
        return True

    def texts_of_a_sample(self, options: SparseEncoding) -> int:
        """Return the number of texts per row, without negative columns found by their names."""
        return 2 + len(options.negative_columns)
