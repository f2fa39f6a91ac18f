"""The task question-answering: finding the answer in a context, as in SQuAD."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ftcluster_common.data.answers import (
    ANSWERS,
    CONTEXTS,
    QUESTIONS,
    START,
    AnswerColumns,
    UnplacedAnswerError,
    read_answers,
)
from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.columns import named_column
from ftcluster_common.data.row_checks import CheckRow, check_by_reading, check_columns
from ftcluster_common.data.rows import DataError, Row
from ftcluster_common.limits import limited
from ftcluster_common.tasks.spec import SPECIAL_TOKENS, Adapters, Contradiction, TaskSpec

SKIPPED = {
    "repeated": "skipped, because the context has the answer several times",
    "missing": "skipped, because the context does not have the answer",
}


@dataclass(frozen=True)
class QuestionAnswering(Adapters):
    """Finds the answer to a question as a span of a context, as in SQuAD.

    Attributes:
        question_column: column with questions. Unless this field is set, a column with another
            usual name may be used.
        context_column: column with the texts that contain the answers. Unless this field is set, a
            column with another usual name may be used.
        answers_column: column with the answers: either objects with two lists, `text` and
            `answer_start`, or strings that are searched for in the context. Unless this field is
            set, a column with another usual name may be used.
        repeated_answers: rule for an answer without a position that occurs several times in the
            context: `refuse` the data, use the `first` occurrence, or `skip` the row.
        missing_answers: rule for an answer without a position that does not occur in the context:
            `refuse` the data, or `skip` the row.
        max_length: number of tokens in a window, which contains the question and a part of the
            context. A longer context is split into several windows.
        doc_stride: number of tokens that consecutive windows of a context share.
        max_query_length: maximum number of tokens of a question; longer questions are truncated.
        n_best_size: number of start candidates and of end candidates that are combined into answers
            for each window.
        max_answer_length: maximum number of tokens of a predicted answer.
        version_2_with_negative: True if questions may have no answer, as in SQuAD 2.0. Otherwise,
            training questions without an answer are skipped.
        null_score_diff_threshold: margin by which the score of predicting no answer must exceed the
            score of the best answer.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
    """

    question_column: str = "question"
    context_column: str = "context"
    answers_column: str = "answers"
    repeated_answers: Literal["refuse", "first", "skip"] = "refuse"
    missing_answers: Literal["refuse", "skip"] = "refuse"
    max_length: int = limited(384, at_least=16)
    doc_stride: int = limited(128, at_least=0)
    max_query_length: int = limited(64, at_least=1)
    n_best_size: int = limited(20, at_least=1)
    max_answer_length: int = limited(30, at_least=1)
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


def answering_columns(
    options: QuestionAnswering, columns: Sequence[str], answered: bool = True
) -> AnswerColumns:
    """Return the columns with questions and contexts, and with answers if they are needed.

    If the data lack a column, the result contains the name in the recipe.
    """
    question = named_column(options.question_column, QUESTIONS, columns)
    context = named_column(options.context_column, CONTEXTS, columns)
    answers = named_column(options.answers_column, ANSWERS, columns)
    named = AnswerColumns(question or options.question_column, context or options.context_column)
    if not answered:
        return named
    start = START if START in columns and answers else ""
    return named._replace(answers=answers or options.answers_column, start=start)


def answers_of(row: Row, columns: AnswerColumns, options: QuestionAnswering) -> dict[str, Any]:
    """Return the answers in a row, as `read_answers` does.

    Raises:
        UnplacedAnswerError: the position of an answer cannot be found.
        DataError: the row is not valid.
    """
    problem = check_columns([columns.question, columns.context], [columns.answers], row)
    if problem:
        raise DataError(problem)
    return read_answers(row, columns, first=options.repeated_answers == "first")


def skip_reason(row: Row, columns: AnswerColumns, options: QuestionAnswering) -> str:
    """Return the reason why a row is skipped with these options, or "" if it is not skipped.

    Raises:
        DataError: the row is not valid.
    """
    try:
        answers_of(row, columns, options)
    except UnplacedAnswerError as error:
        wanted = {"repeated": options.repeated_answers, "missing": options.missing_answers}
        if wanted[error.cause] != "skip":
            raise
        return SKIPPED[error.cause]
    return ""


class QuestionAnsweringSpec(TaskSpec[QuestionAnswering]):
    """The declaration of the task question-answering."""

    name = "question-answering"
    fields = QuestionAnswering
    later_fields = (*TaskSpec.later_fields, "missing_answers", "repeated_answers")
    recipe = "squad"
    exported_as = "QuestionAnswering"
    adapter_type = "QUESTION_ANS"
    reads_pairs = True
    auto_class = "AutoModelForQuestionAnswering"
    model_recipes = {"ForQuestionAnswering": ("squad",)}

    def columns(
        self,
        options: QuestionAnswering,
        columns: Sequence[str],
        answered: bool,
    ) -> Columns:
        """Return the columns that the recipe names, or columns with usual names."""
        named = answering_columns(options, columns, answered)._asdict()
        return {use: (name,) for use, name in named.items() if name}

    def row_check(
        self,
        options: QuestionAnswering,
        answered: bool,
        columns: Sequence[str],
    ) -> CheckRow:
        """Return a check that a row's answers occur at their positions in the context."""
        named = answering_columns(options, columns, answered)
        if named.answers not in columns:
            return partial(check_columns, [name for name in named if name], [])
        return check_by_reading(partial(skip_reason, columns=named, options=options))

    def row_form(self, options: QuestionAnswering, answered: bool) -> str:
        """Describe a row that contains a question, a context and answers."""
        texts = f"{options.question_column}, {options.context_column} (text)"
        form = (
            '{"text": [...], "answer_start": [...]}, empty lists where there is no answer; or a '
            "text that the context has once"
        )
        answers = f" and {options.answers_column} ({form})" if answered else ""
        return f"each row has {texts}{answers}"

    def has_references(self, options: QuestionAnswering) -> bool:
        """Return True."""
        return True

    def skip_reason(self, options: QuestionAnswering, uses: Columns, row: Row) -> str:
        """Return why an answer has no position, if the options skip such rows."""
        columns = AnswerColumns(
            **{use: "".join(uses.get(use, ())) for use in AnswerColumns._fields}
        )
        try:
            return skip_reason(row, columns, options) if columns.answers else ""
        except DataError:  # the error is reported when the rows are read
            return ""

    def metric_names(self, options: QuestionAnswering) -> tuple[str, ...]:
        """Return the names of the metrics of SQuAD 1.1 or 2.0."""
        names: tuple[str, ...] = ("exact_match", "f1")
        if options.version_2_with_negative:
            names += ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
        return names

    def contradictions(self, options: QuestionAnswering) -> Iterator[Contradiction]:
        """Yield errors if lengths leave no room for a context, or if a threshold is unused."""
        if options.max_length <= options.max_query_length + options.doc_stride + SPECIAL_TOKENS:
            less = options.max_length // 4
            fits = 2 * less + SPECIAL_TOKENS < options.max_length
            hint = f"; max_query_length={less} and doc_stride={less} would fit" if fits else ""
            yield (
                "max_length",
                f"{options.max_length} tokens leave no room for a context, because a question has "
                f"up to {options.max_query_length} (max_query_length), features share "
                f"{options.doc_stride} (doc_stride), and {SPECIAL_TOKENS} are special{hint}",
            )
        if options.null_score_diff_threshold and not options.version_2_with_negative:
            yield (
                "null_score_diff_threshold",
                "it is for questions without an answer: version_2_with_negative: true",
            )

    def smooths_labels(self, options: QuestionAnswering) -> bool:
        """Return False, because the labels are positions in a text."""
        return False
