"""The task multi-vector-encoding: a vector for each token (ColBERT), compared by MaxSim."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.row_checks import CheckRow
from ftcluster_common.limits import limited
from ftcluster_common.tasks.embed import SentenceSimilarity, SentenceSimilaritySpec
from ftcluster_common.tasks.spec import RETRIEVAL_METRICS, Contradiction, Options, TaskSpec

_PAIRS = SentenceSimilaritySpec()  # reads the same rows


@dataclass(frozen=True)
class MultiVectorEncoding(Options):
    """Trains a vector for each token of a text, for late interaction (ColBERT).

    The score of a query and a text is MaxSim (Khattab and Zaharia 2020): for each token of the
    query the largest cosine with a token of the text, summed over the query's tokens. The loss is
    sentence-transformers' MultiVectorMultipleNegativesRankingLoss; a query's negatives are all
    texts of the batch, on all ranks, that do not belong to the query.

    Attributes:
        query_column: column with queries. Default: found by its name.
        positive_column: column with the text that belongs to the query. Default: found by its name.
        negative_columns: columns with texts, or lists of texts, that do not belong to the query.
            Default: all that are called negative, negatives, negative_1 and so on.
        max_length: maximum tokens of a text that is not a query; longer ones are cut.
        query_length: maximum tokens of a query; longer ones are cut.
        query_expansion: True to fill each query up to query_length with mask tokens, whose vectors
            are compared too. `auto` is as in the model's folder, else false.
        skip_punctuation: True to compare no vectors of punctuation in texts that are not queries.
            `auto` is as in the model's folder, else false.
        dimension: elements of a vector. Default: as in the model's folder, else 128.
        query_prompt: text before each query, such as "[Q] ". Default: the model's prompt for
            queries, else its default prompt.
        text_prompt: text before each text that is not a query, also before those of `ftcluster
            predict`. Default: the model's prompt for documents, else its default prompt.
        scale: multiplier of the scores, which is the inverse of the temperature.
        validation_split_percentage: share in percent of the rows that become the validation set if
            the data have none.
    """

    query_column: str | None = None
    positive_column: str | None = None
    negative_columns: tuple[str, ...] = ()
    max_length: int = limited(256, at_least=3)
    query_length: int = limited(32, at_least=3)
    query_expansion: Literal["auto", True, False] = "auto"
    skip_punctuation: Literal["auto", True, False] = "auto"
    dimension: int | None = limited(None, at_least=1)
    query_prompt: str | None = None
    text_prompt: str | None = None
    scale: float = limited(1.0, above=0)
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


class MultiVectorEncodingSpec(TaskSpec[MultiVectorEncoding]):
    """The declaration of the training of multi-vector encoders."""

    name = "multi-vector-encoding"
    fields = MultiVectorEncoding
    recipe = "colbert"
    pipeline = "feature-extraction"
    is_multi_vector_encoder = True
    training_fields = (*TaskSpec.training_fields, "scale")

    def columns(
        self, options: MultiVectorEncoding, columns: Sequence[str], answered: bool
    ) -> Columns:
        """Find pairs of texts, or the single texts of a prediction."""
        uses = dict(_PAIRS.columns(options.pairs, columns, answered))
        uses.pop("label", None)  # scores of pairs are not read
        return uses

    def row_check(
        self, options: MultiVectorEncoding, answered: bool, columns: Sequence[str]
    ) -> CheckRow:
        """Return a check that a row's pair can be read, or that a row has a text."""
        return _PAIRS.row_check(options.pairs, answered, columns)

    def row_form(self, options: MultiVectorEncoding, answered: bool) -> str:
        """Describe a row with a pair of texts, or with a single text."""
        if not answered:
            return _PAIRS.row_form(options.pairs, answered)
        query, positive = options.query_column or "query", options.positive_column or "positive"
        return (
            f"each row has {query}, {positive} (the text that belongs to the query) and optional "
            "negatives (texts that do not)"
        )

    def metric_names(self, options: MultiVectorEncoding) -> tuple[str, ...]:
        """Return the metrics of the search."""
        return (*RETRIEVAL_METRICS, "recall_at_10", "recall_at_100")

    def contradictions(self, options: MultiVectorEncoding) -> Iterator[Contradiction]:
        """Yield an error for queries that may be longer than other texts."""
        if options.query_length > options.max_length:
            yield (
                "query_length",
                f"it is {options.query_length}, more than max_length, which is "
                f"{options.max_length}",
            )

    def smooths_labels(self, options: MultiVectorEncoding) -> bool:
        """Return False: there are no classes."""
        return False

    def compares_batch(self, options: MultiVectorEncoding) -> bool:
        """Return True: the negatives of a query are in the whole batch."""
        return True

    def reads_modules(self, options: MultiVectorEncoding) -> bool:
        """Return True: the modules and prompts of the model are used."""
        return True

    def texts_of_a_sample(self, options: MultiVectorEncoding) -> int:
        """Return the number of texts per row, without negative columns found by their names."""
        return 2 + len(options.negative_columns)
