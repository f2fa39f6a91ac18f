"""The part of a task's declaration that encoders for retrieval share: rows with pairs of texts."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.row_checks import CheckRow
from ftcluster_common.tasks.embed import (
    DISTILL_KL,
    NO_TEMPERATURE,
    TEACHER_LOSSES,
    SentenceSimilarity,
    SentenceSimilaritySpec,
)
from ftcluster_common.tasks.spec import RETRIEVAL_METRICS, Adapters, Contradiction, TaskSpec

_PAIRS = SentenceSimilaritySpec()  # reads rows in the same format


class RetrievalOptions(Adapters):
    """Base class of the recipe fields. Each task declares these fields with its own defaults."""

    query_column: str | None
    positive_column: str | None
    negative_columns: tuple[str, ...]
    max_length: int
    query_prompt: str | None
    text_prompt: str | None
    loss: str
    label_column: str | None
    temperature: float
    scale: float
    validation_split_percentage: float

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
            label_column=self.label_column,
            loss=self.loss,  # type: ignore[arg-type]
            temperature=self.temperature,
            scale=self.scale,
            validation_split_percentage=self.validation_split_percentage,
        )


Fields = TypeVar("Fields", bound=RetrievalOptions)


class RetrievalSpec(TaskSpec[Fields]):
    """Base class of the declarations of sparse and multi-vector encoders."""

    pipeline = "feature-extraction"
    training_fields = (*TaskSpec.training_fields, "loss", "temperature", "scale")
    later_fields = (*TaskSpec.later_fields, "loss", "label_column", "temperature")

    def columns(self, options: Fields, columns: Sequence[str], answered: bool) -> Columns:
        """Return the columns of pairs, or of single texts for predictions."""
        uses = dict(_PAIRS.columns(options.pairs, columns, answered))
        if not options.pairs.reads_margins:  # the other losses do not use scores
            uses.pop("label", None)
        return uses

    def row_check(self, options: Fields, answered: bool, columns: Sequence[str]) -> CheckRow:
        """Return a check that a row contains a valid pair, or a single text."""
        return _PAIRS.row_check(options.pairs, answered, columns)

    def row_form(self, options: Fields, answered: bool) -> str:
        """Describe a row that contains a pair of texts, or a single text."""
        pairs = options.pairs
        if not answered:
            return _PAIRS.row_form(pairs, answered)
        query, positive = pairs.query_column or "query", pairs.positive_column or "positive"
        return (
            f"each row has {query}, {positive} (the text that belongs to the query) and "
            + ("a teacher's scores and " if pairs.reads_margins else "optional ")
            + "negatives (texts that do not)"
        )

    def contradictions(self, options: Fields) -> Iterator[Contradiction]:
        """Yield an error for each field that only a loss of a teacher's scores uses."""
        pairs = options.pairs
        if pairs.label_column and not pairs.reads_margins:
            yield "label_column", f"it is only for loss={' and loss='.join(TEACHER_LOSSES)}"
        if pairs.temperature != 1 and pairs.loss != DISTILL_KL:
            yield "temperature", NO_TEMPERATURE

    def metric_names(self, options: Fields) -> tuple[str, ...]:
        """Return the names of the retrieval metrics."""
        return (*RETRIEVAL_METRICS, "recall_at_10", "recall_at_100")

    def smooths_labels(self, options: Fields) -> bool:
        """Return False, because there are no classes."""
        return False

    def compares_batch(self, options: Fields) -> bool:
        """Return True, because the other rows of the batch contain negatives of a query."""
        return True

    def searches(self, options: Fields) -> bool:
        """Return True, because retrieval metrics need a search."""
        return True

    def reads_modules(self, options: Fields) -> bool:
        """Return True, because training uses the modules and prompts in the model's folder."""
        return True

    def texts_of_a_sample(self, options: Fields) -> int:
        """Return the number of texts per row, without negatives in columns detected by name."""
        return 2 + len(options.pairs.negative_columns)
