"""The task text-distillation: training a classifier on the outputs of a larger classifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.columns import LABELS
from ftcluster_common.data.data_files import Row, short
from ftcluster_common.data.row_checks import CheckRow, check_columns
from ftcluster_common.limits import limited
from ftcluster_common.tasks.classify import TextClassification, classification_columns
from ftcluster_common.tasks.spec import Adapters, TaskSpec


@dataclass(frozen=True)
class TextDistillation(Adapters):
    """Trains a classifier on the outputs of a larger classifier, its teacher (Hinton et al. 2015).

    Attributes:
        text_columns: one or two columns with text. Default: detected from the column names.
        label_column: column with one of the teacher's classes. For rows without a class, and for
            data without this column, the loss only compares with the teacher.
        temperature: number by which the logits of both models are divided.
        alpha: fraction of the loss that compares with the teacher; the rest is the cross entropy
            with the labels.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
        max_length: maximum tokens of a row's texts; longer texts are truncated.
    """

    text_columns: tuple[str, ...] = limited((), at_most=2)
    label_column: str = "label"
    temperature: float = limited(2.0, above=0)
    alpha: float = limited(0.5, at_least=0, at_most=1)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)
    max_length: int = limited(128, at_least=1)


def distilled_columns(
    options: TextDistillation, columns: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """Return the columns with texts and the column with classes, which may be "".

    Raises:
        DataError: there is no column with texts, or a column named in the recipe is missing.
    """
    named = options.label_column != LABELS[0]
    plain = TextClassification(options.text_columns, options.label_column)
    texts, labels = classification_columns(plain, columns, labelled=named)
    return texts, "".join(labels)


def _distillation_problem(texts: Sequence[str], label: str, row: Row) -> str:
    problem = check_columns(texts, [], row)
    if not problem and isinstance(row.get(label), list | dict):
        return f"{label} is {short(row[label])}, not a class or nothing"
    return problem


class TextDistillationSpec(TaskSpec[TextDistillation]):
    """The declaration of the task text-distillation."""

    name = "text-distillation"
    fields = TextDistillation
    recipe = "distill"
    exported_as = "SequenceClassification"
    compared_rows = "classes"
    adapter_type = "SEQ_CLS"
    pipeline = "text-classification"
    scaled_by = {"temperature": ("loss",), "alpha": ("loss",), "teacher": ("loss", "agreement")}
    student = ("classifier", "classify")
    shares_tokenizer = True

    def columns(
        self,
        options: TextDistillation,
        columns: Sequence[str],
        answered: bool,
    ) -> Columns:
        """Return the columns with the texts, and with the label if there is one."""
        texts, label = distilled_columns(options, columns)
        return {"text": texts, "label": (label,) if label else ()}

    def row_check(
        self,
        options: TextDistillation,
        answered: bool,
        columns: Sequence[str],
    ) -> CheckRow:
        """Return a check that a row contains texts, and that its label is a class or empty."""
        return partial(_distillation_problem, *distilled_columns(options, columns))

    def row_form(self, options: TextDistillation, answered: bool) -> str:
        """Describe a row that contains texts and possibly a label."""
        texts = ", ".join(options.text_columns) or "one or two columns of text"
        return f"each row has {texts} and, if it is known, {options.label_column}"

    def metric_names(self, options: TextDistillation) -> tuple[str, ...]:
        """Return the names of the classification metrics, and of the agreement with the teacher."""
        return ("loss", "accuracy", "f1_macro", "agreement")

    def has_classes(self, options: TextDistillation) -> bool:
        """Return True, because labels are classes of the teacher."""
        return True

    def needs_teacher(self, options: TextDistillation) -> bool:
        """Return True, because the task distils the recipe's teacher."""
        return True
