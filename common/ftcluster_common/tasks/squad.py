"""The task question-answering: the answer to a question as a span of a context, as in SQuAD."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.data_files import Row, short
from ftcluster_common.data.row_checks import CheckRow, check_columns
from ftcluster_common.limits import limited
from ftcluster_common.tasks.spec import SPECIAL_TOKENS, Adapters, Contradiction, TaskSpec

ANSWERING = ("question", "context", "answers")


@dataclass(frozen=True)
class QuestionAnswering(Adapters):
    """Finds the answer to a question as a span of a context, as in SQuAD.

    Attributes:
        question_column: column with questions.
        context_column: column with the texts that hold the answers.
        answers_column: column with the answers: objects with `text` and `answer_start`, a list
            each.
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
    max_length: int = limited(384, at_least=16)
    doc_stride: int = limited(128, at_least=0)
    max_query_length: int = limited(64, at_least=1)
    n_best_size: int = limited(20, at_least=1)
    max_answer_length: int = limited(30, at_least=1)
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)


def answering_columns(options: QuestionAnswering, answered: bool = True) -> tuple[str, ...]:
    """Return the columns with question and context, and with answers if they are needed."""
    columns = (options.question_column, options.context_column, options.answers_column)
    return columns if answered else columns[:2]


def _answering(options: QuestionAnswering, columns: Sequence[str]) -> CheckRow:
    if options.answers_column in columns:
        return partial(_answering_problem, options)
    return partial(check_columns, columns, [])


def _answering_problem(options: QuestionAnswering, row: Row) -> str:
    """Return a row's problem, such as an answer that is not at its place; "" if there is none."""
    column = options.answers_column
    problem = check_columns([options.question_column, options.context_column], [column], row)
    if problem:
        return problem
    answers, context = row[column], row[options.context_column]
    if not isinstance(answers, dict) or not {"text", "answer_start"} <= set(answers):
        return f"{column} is {short(answers)}, not an object with text and answer_start"
    texts, starts = answers["text"], answers["answer_start"]
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return f"text and answer_start of {column} are not two lists of the same length"
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or not isinstance(start, int) or start < 0:
            has = f"{column} has {short(text)} at {short(start)}"
            return f"{has}, not a text at the number of a character"
        actual = context[start : start + len(text)]
        if actual != text:
            there = f"character {start} of the context, but {short(actual)}"
            return f"answer {short(text)} is not at {there}"
    return ""


class QuestionAnsweringSpec(TaskSpec[QuestionAnswering]):
    """The declaration of question answering."""

    name = "question-answering"
    fields = QuestionAnswering
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
        """Return the columns that the recipe names."""
        read = zip(ANSWERING, answering_columns(options, answered), strict=False)
        return {use: (name,) for use, name in read}

    def row_check(
        self,
        options: QuestionAnswering,
        answered: bool,
        columns: Sequence[str],
    ) -> CheckRow:
        """Return a check that a row's answers are at their places in the context."""
        return _answering(options, answering_columns(options, answered))

    def row_form(self, options: QuestionAnswering, answered: bool) -> str:
        """Describe a row with a question, a context and answers."""
        texts = f"{options.question_column}, {options.context_column} (text)"
        form = '{"text": [...], "answer_start": [...]}, empty lists where there is no answer'
        answers = f" and {options.answers_column} ({form})" if answered else ""
        return f"each row has {texts}{answers}"

    def has_references(self, options: QuestionAnswering) -> bool:
        """Return True."""
        return True

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
                f"{options.max_length} tokens leave no room for a context, where a question has "
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
