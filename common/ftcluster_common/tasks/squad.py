"""The task question-answering: the answer to a question as a span of a context, as in SQuAD."""

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
        question_column: column with questions, or a column with a usual name.
        context_column: column with the texts that hold the answers, or a column with a usual name.
        answers_column: column with the answers, or a column with a usual name: objects with `text`
            and `answer_start`, a list each; or texts, which are searched in the context.
        repeated_answers: treatment of an answer without a position that the context has several
            times: `refuse` the data, use the `first` place, or `skip` the row.
        missing_answers: treatment of an answer without a position that the context does not have:
            `refuse` the data, or `skip` the row.
        max_length: tokens of a window, which holds the question and a part of the context. A longer
            context has several windows.
        doc_stride: tokens that neighbouring windows of a context share.
        max_query_length: maximum tokens of a question; longer ones are cut.
        n_best_size: number of start and end candidates of a window that are combined.
        max_answer_length: maximum tokens of a predicted answer.
        version_2_with_negative: True if questions may have no answer, as in SQuAD 2.0; otherwise
            training questions without an answer are skipped.
        null_score_diff_threshold: margin by which the score of no answer must exceed the best
            answer's score.
        validation_split_percentage: share in percent of the rows that become the validation set if
            the data have none.
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
    """Return the columns with question and context, and with answers if they are needed.

    A column that the data lack keeps the name that the recipe has for it.
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
    """Return the answers of a row, see `read_answers`.

    Raises:
        UnplacedAnswerError: the position of an answer cannot be found.
        DataError: the row is not valid.
    """
    problem = check_columns([columns.question, columns.context], [columns.answers], row)
    if problem:
        raise DataError(problem)
    return read_answers(row, columns, first=options.repeated_answers == "first")


def skip_reason(row: Row, columns: AnswerColumns, options: QuestionAnswering) -> str:
    """Return the reason why the options skip a row, or "".

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
    """The declaration of question answering."""

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
        """Return a check that a row's answers are at their places in the context."""
        named = answering_columns(options, columns, answered)
        if named.answers not in columns:
            return partial(check_columns, [name for name in named if name], [])
        return check_by_reading(partial(skip_reason, columns=named, options=options))

    def row_form(self, options: QuestionAnswering, answered: bool) -> str:
        """Describe a row with a question, a context and answers."""
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
        """Return the reason why an answer has no position, if such rows are skipped."""
        columns = AnswerColumns(
            **{use: "".join(uses.get(use, ())) for use in AnswerColumns._fields}
        )
        try:
            return skip_reason(row, columns, options) if columns.answers else ""
        except DataError:  # reading the rows reports the error
            return ""

    def metric_names(self, options: QuestionAnswering) -> tuple[str, ...]:
        """Return the metrics of SQuAD 1.1 or 2.0."""
        names: tuple[str, ...] = ("exact_match", "f1")
        if options.version_2_with_negative:
            names += ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
        return names

    def contradictions(self, options: QuestionAnswering) -> Iterator[Contradiction]:
        """Yield errors for lengths that leave no room for a context, and an unused threshold."""
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
        """Return False: the labels are positions in a text."""
        return False
