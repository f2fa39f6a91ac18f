"""The task text-classification: predicting classes or a number from texts."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Literal

from ftcluster_common.data.class_lists import (
    Separator,
    find_separator,
    separator_note,
    split_classes,
)
from ftcluster_common.data.class_names import WHOLE, find_labels
from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.columns import (
    LABELS,
    LOOKED_AT,
    as_flag,
    find_texts,
    is_incomplete,
    named_column,
)
from ftcluster_common.data.data_files import (
    DataError,
    Files,
    Row,
    Table,
    found_columns,
    read_on_hosts,
    short,
)
from ftcluster_common.data.numbers import as_number, why_no_number
from ftcluster_common.data.row_checks import CheckRow, check_columns, is_class
from ftcluster_common.limits import limited
from ftcluster_common.tasks.spec import Adapters, Contradiction, TaskSpec

GlueTask = Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"]
Metric = Literal[
    "accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "matthews", "pearson", "spearman"
]  # fmt: skip
ThresholdMetric = Literal["f1", "f1_macro", "accuracy", "matthews"]
CALIBRATION_METRICS = ("ece", "ece_calibrated")  # before and after calibration
REGRESSION_METRICS = ("pearson", "spearman")
CLASS_METRICS = ("accuracy", "f1", "f1_macro", "f1_micro")


@dataclass(frozen=True)
class TextClassification(Adapters):
    """Predicts the class or the classes of one or two texts, or a number with `regression`.

    Attributes:
        text_columns: one or two columns with text. Default: detected from the column names.
        label_column: column with the class, or with a list of classes; for regression, the column
            with the number. Unless this field is set, a column with another usual name for labels
            may be used.
        label_separator: text that separates several classes in a cell: `comma`, `semicolon`, `pipe`
            or `hash`. `list` reads cells with lists written as text. `none` reads each cell as one
            class. Default: detected from the data.
        label_columns: columns that contain 0 or 1, one for each class, for rows that may have
            several classes. Default: three or more such columns, if the data have no column with
            the class.
        glue_task: name of a GLUE task. It determines text_columns, regression, metrics,
            validation_splits and data_config, unless the recipe sets these fields.
        regression: True to predict a number instead of a class.
        metrics: metrics to measure. Default for two classes: accuracy and the F1 score of the
            second class; for more classes: accuracy and f1_macro; for rows with several classes:
            f1_micro and f1_macro; for regression: Pearson's and Spearman's correlations.
        class_weights: weights of the classes in the loss: `balanced` for weights inversely
            proportional to the number of rows of each class, or a number for some classes, such as
            `{spam: 4}`; all other classes then have the weight 1.
        skip_incomplete: True to skip rows without a text or a class; otherwise, such rows are an
            error.
        all_probabilities: True to let `ftcluster predict` write the probabilities of all classes.
        calibrate: True to calibrate the predicted probabilities, if each row has one class. The
            logits are divided by a temperature, which is chosen to maximize the likelihood of the
            validation set.
        threshold_metric: metric for tuning the decision threshold, if there are two classes: the
            second class gets the threshold that maximizes this metric on the validation set.
            Default: no threshold; the more likely class is predicted.
        validation_splits: names of the validation sets to evaluate. If there are several, the names
            of the metrics include the name of the set.
        validation_split_percentage: percentage of each class's rows to use as the validation set if
            the data have none.
        max_length: maximum tokens of a row's texts; longer texts are truncated.
    """

    text_columns: tuple[str, ...] = limited((), at_most=2)
    label_column: str = "label"
    label_separator: Separator | None = None
    label_columns: tuple[str, ...] = ()
    glue_task: GlueTask | None = None
    regression: bool = False
    metrics: tuple[Metric, ...] | None = None
    class_weights: Literal["balanced"] | Mapping[str, float] | None = None
    skip_incomplete: bool = False
    all_probabilities: bool = False
    calibrate: bool = False
    threshold_metric: ThresholdMetric | None = None
    validation_splits: tuple[str, ...] = ("validation",)
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)
    max_length: int = limited(128, at_least=1)


@dataclass(frozen=True)
class Glue:
    """The settings of a GLUE task, for the data nyu-mll/glue on the Hub and run_glue's metrics."""

    text_columns: tuple[str, ...]
    metrics: tuple[Metric, ...] = ("accuracy",)
    regression: bool = False
    validation_splits: tuple[str, ...] = ("validation",)


# The columns are those in task_to_keys of transformers' example run_glue.py. The metrics are those
# in table 1 of the GLUE paper (arXiv 1804.07461).
GLUE: dict[str, Glue] = {
    "cola": Glue(("sentence",), ("matthews",)),
    "sst2": Glue(("sentence",)),
    "mrpc": Glue(("sentence1", "sentence2"), ("accuracy", "f1")),
    "qqp": Glue(("question1", "question2"), ("accuracy", "f1")),
    "stsb": Glue(("sentence1", "sentence2"), ("pearson", "spearman"), regression=True),
    "mnli": Glue(
        ("premise", "hypothesis"), validation_splits=("validation_matched", "validation_mismatched")
    ),
    "qnli": Glue(("question", "sentence")),
    "rte": Glue(("sentence1", "sentence2")),
    "wnli": Glue(("sentence1", "sentence2")),
}


def classification_columns(
    options: TextClassification, columns: Sequence[str], labelled: bool = True
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns with texts, and the columns with labels.

    The second element contains one column with the label, or one column for each class.

    Args:
        columns: names of the columns in the data.
        labelled: True if the data must contain labels.

    Raises:
        DataError: there are no such columns. The message lists the columns and shows how to name
            them in a recipe.
    """
    texts = options.text_columns or find_texts(columns)
    label = "" if options.label_columns else named_column(options.label_column, LABELS, columns)
    wanted = (*texts, *(options.label_columns if labelled else ()))
    missing = [name for name in wanted if name not in columns]
    if not label and labelled and not options.label_columns:
        missing.append(options.label_column)
    if missing or not texts:
        guessed = find_texts(columns) or ("NAME",)
        what = "no column with a usual name for texts"
        if missing:
            alike = {name.lower(): f" ({name} is one)" for name in columns}
            what = f"no column {', '.join(name + alike.get(name.lower(), '') for name in missing)}"
        raise DataError(
            f"{what}; {found_columns(columns)}; name the columns: "
            f"text_columns={','.join(guessed)} label_column={label or 'NAME'}"
        )
    return tuple(texts), options.label_columns or ((label,) if label else ())


def with_label_columns(options: TextClassification, rows: Iterable[Row]) -> TextClassification:
    """Return the options with label_columns set to the columns of 0 and 1 in the first rows.

    The options stay unchanged if the recipe names a column with the class, or if the data contain a
    column with a usual name for classes. They also stay unchanged if fewer than three columns
    contain 0 and 1, because such columns may be something else than classes.

    >>> row = {"text": "a b", "toxic": "1", "insult": "0", "threat": 0, "id": "7"}
    >>> with_label_columns(TextClassification(), [row]).label_columns
    ('toxic', 'insult', 'threat')
    """
    first = list(islice(rows, LOOKED_AT))
    columns = list(first[0]) if first else []
    named = options.label_columns or options.label_column != LABELS[0]
    if named or options.regression or named_column(LABELS[0], LABELS, columns):
        return options
    texts = options.text_columns or find_texts(columns)
    flags = [
        name
        for name in columns
        if name not in texts and all(as_flag(row.get(name)) is not None for row in first)
    ]
    return replace(options, label_columns=tuple(flags)) if len(flags) > 2 else options


def with_separator(options: TextClassification, rows: Iterable[Row]) -> TextClassification:
    """Return the options with label_separator set to the separator of classes in these rows.

    The options stay unchanged if the recipe sets a separator or label columns, if labels are
    numbers, or if the cells contain no separator.
    """
    if options.label_separator or options.label_columns or options.regression:
        return options
    every = iter(rows)
    first = next(every, {})
    column = named_column(options.label_column, LABELS, list(first))
    if not column:
        return options
    separator = find_separator(row.get(column) for row in chain([first], every))
    return options if separator == "none" else replace(options, label_separator=separator)


def _classification(
    options: TextClassification, labelled: bool, columns: Sequence[str]
) -> CheckRow:
    texts, labels = classification_columns(options, columns, labelled)
    if not labelled:
        return partial(check_columns, texts, [])
    return partial(_classification_problem, options, texts, labels, [])


def _classification_problem(
    options: TextClassification, texts: Sequence[str], labels: Sequence[str], kinds: list[bool],
    row: Row,
) -> str:  # fmt: skip
    """Return the problem of a row, or "".

    Args:
        kinds: filled by the first row: True if its label is a list. Labels of later rows must have
            the same kind.
    """
    if options.skip_incomplete and is_incomplete(row, [*texts, *labels]):
        return ""
    problem = check_columns(texts, labels, row)
    if problem:
        return problem
    if options.label_columns:
        wrong = [name for name in labels if as_flag(row[name]) is None]
        return f"{wrong[0]} is {short(row[wrong[0]])}, not 0 or 1" if wrong else ""
    [column] = labels
    label = split_classes(row[column], options.label_separator)
    if options.regression:
        if as_number(label) is None:
            return f"{column} is {short(label)}, {why_no_number(label)}"
        return ""
    kinds[:] = kinds or [isinstance(label, list)]
    if isinstance(label, list) != kinds[0]:
        return f"{column} is {short(label)}: a list of classes in some rows, and not in others"
    if label is None or label == "":
        return f"{column} is empty; to skip rows without a class: skip_incomplete=true"
    for item in label if isinstance(label, list) else [label]:
        if not is_class(item):
            return f"{column} is {short(label)}, not a class: a word, or a number (0, 1, ...)"
    return ""


def _check_labels(files: Files, options: TextClassification, trains: bool) -> list[str]:
    """Return the problem of the whole column of labels, which the head would report later."""
    if not files or options.label_columns or any(map(read_on_hosts, files)):
        return []
    labels: list[Any] = []
    column = options.label_column
    for _, row in Table(files).with_places():
        assert not isinstance(row, DataError), "the rows have been checked"
        texts, [column] = classification_columns(options, list(row))
        if not (options.skip_incomplete and is_incomplete(row, [*texts, column])):
            labels.append(split_classes(row[column], options.label_separator))
    try:
        find_labels(labels, column, trains=trains)
    except DataError as error:
        return [f"{files[0]}: {error}"]
    return []


def _check_scores(files: Files, options: TextClassification) -> list[str]:
    """Return a problem with the first label that is a score, if all labels are numbers.

    There is no check if some files can only be read on the hosts.
    """
    scores: list[str] = []
    separated = options.label_separator not in (None, "none")
    if separated or options.label_columns or any(map(read_on_hosts, files)):
        return scores
    for where, row in Table(files).with_places():
        assert not isinstance(row, DataError), "the rows have been checked"
        texts, [column] = classification_columns(options, list(row))
        label = row[column]
        if options.skip_incomplete and is_incomplete(row, [*texts, column]):
            continue
        if as_number(label) is None:
            return []  # at least one label is a word
        if not WHOLE.fullmatch(str(label).strip()) and not scores:
            scores.append(f"{where}: {column} is {label!r}, a number, not a class")
    return scores


class TextClassificationSpec(TaskSpec[TextClassification]):
    """The declaration of the task text-classification."""

    name = "text-classification"
    fields = TextClassification
    later_fields = (*TaskSpec.later_fields, "label_separator", "calibrate", "threshold_metric")
    recipe = "classify"
    exported_as = "SequenceClassification"
    compared_rows = "classes"
    adapter_type = "SEQ_CLS"
    model_recipes = {"ForSequenceClassification": ("classify", "glue")}
    sets_fields = dict.fromkeys(("glue_task", "task_name"), tuple(vars(GLUE["cola"])))
    training_fields = (
        *TaskSpec.training_fields,
        "glue_task", "metrics", "class_weights", "skip_incomplete", "all_probabilities",
        "calibrate", "threshold_metric", "validation_splits",
    )  # fmt: skip

    def columns(
        self, options: TextClassification, columns: Sequence[str], answered: bool
    ) -> Columns:
        """Return the columns with the texts, and with the label or one column for each class."""
        texts, labels = classification_columns(options, columns, answered)
        return {"text": texts, "label": labels if answered else ()}

    def row_check(
        self, options: TextClassification, answered: bool, columns: Sequence[str]
    ) -> CheckRow:
        """Return a check of a row's texts and label; all labels must be of the same kind."""
        return _classification(options, answered, columns)

    def row_form(self, options: TextClassification, answered: bool) -> str:
        """Describe a row that contains texts and a label."""
        texts = ", ".join(options.text_columns) or "one or two columns of text"
        kind = (
            "a number"
            if options.regression
            else "a word or a number, or a list of them; scores: regression=true"
        )
        label = f" and {options.label_column} ({kind})" if answered else ""
        if options.label_columns and answered:
            label = f" and {', '.join(options.label_columns)} (0 or 1)"
        return f"each row has {texts}{label}"

    def tunes_on_validation(self, options: TextClassification) -> tuple[str, ...]:
        """Return the fields for calibration and thresholds that are set."""
        return tuple(name for name in ("calibrate", "threshold_metric") if getattr(options, name))

    def has_references(self, options: TextClassification) -> bool:
        """Return True."""
        return True

    def metric_names(self, options: TextClassification) -> tuple[str, ...]:
        """Return the names of the metrics; with several validation sets, for each set."""
        default = REGRESSION_METRICS if options.regression else CLASS_METRICS
        names = (*(options.metrics or default), "loss")
        names = (*names, *CALIBRATION_METRICS) if options.calibrate else names
        if len(options.validation_splits) == 1:
            return names
        endings = [split.removeprefix("validation_") for split in options.validation_splits]
        return tuple(f"{name}_{ending}" for ending in endings for name in names)

    def contradictions(self, options: TextClassification) -> Iterator[Contradiction]:
        """Yield errors for class fields in a regression, and for wrong class weights."""
        wrong = [
            name
            for name in options.metrics or ()
            if (name in REGRESSION_METRICS) != options.regression
        ]
        if wrong:
            kind = "a regression" if options.regression else "classes"
            yield "metrics", f"{', '.join(wrong)} cannot be measured for {kind}"
        of_classes = (
            "class_weights", "label_columns", "all_probabilities", "calibrate", "threshold_metric",
        )  # fmt: skip
        for name in of_classes:
            if options.regression and getattr(options, name):
                yield name, f"{name} is for classes, and regression predicts a number"
        for name in self.tunes_on_validation(options):
            if options.label_columns:
                yield name, f"{name} is for rows with one class each, and label_columns for several"
        if isinstance(options.class_weights, Mapping):
            for name, weight in options.class_weights.items():
                if isinstance(weight, bool) or not 0 < weight < math.inf:
                    yield "class_weights", f"the weight of {name} is {weight}, not a number above 0"

    def implied(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the field values that the recipe's GLUE task implies."""
        glue = values.get("glue_task")
        return {**vars(GLUE[glue]), "data_config": glue} if glue else {}

    def with_rows(self, options: TextClassification, rows: Iterable[Row]) -> TextClassification:
        """Return the options with the label columns or the separator that the rows contain."""
        every = iter(rows)
        first = [*islice(every, LOOKED_AT)]
        return with_separator(with_label_columns(options, first), chain(first, every))

    def labels_of(self, options: TextClassification, uses: Columns, row: Row) -> list[Any]:
        """Return the labels of a row; a cell with several classes is split."""
        columns = uses.get("label", ())
        if len(columns) == 1:
            row = {**row, columns[0]: split_classes(row.get(columns[0]), options.label_separator)}
        return super().labels_of(options, uses, row)

    def reading_notes(
        self, asked: TextClassification, options: TextClassification, uses: Columns
    ) -> list[str]:
        """Return a note about the detected separator of classes, if the recipe sets none."""
        if options.label_separator is None or asked.label_separator is not None:
            return []
        return [separator_note(", ".join(uses.get("label", ())), options.label_separator)]

    def file_problems(self, options: TextClassification, files: Files, trains: bool) -> list[str]:
        """Return problems: labels that are scores instead of classes, or too many labels."""
        if options.regression:
            return []
        return _check_scores(files, options) or _check_labels(files, options, trains)

    def validation_splits(self, options: TextClassification) -> tuple[str, ...]:
        """Return the validation sets that the recipe names."""
        return options.validation_splits

    def counts_classes(self, options: TextClassification) -> bool:
        """Return True unless labels are numbers."""
        return not options.regression

    def has_classes(self, options: TextClassification) -> bool:
        """Return True unless labels are numbers."""
        return not options.regression

    def lacks_class_weights(self, options: TextClassification) -> bool:
        """Return True unless the recipe sets class_weights."""
        return options.class_weights is None

    def skips_incomplete(self, options: TextClassification) -> bool:
        """Return True if the recipe sets skip_incomplete."""
        return options.skip_incomplete

    def smooths_labels(self, options: TextClassification) -> bool:
        """Return True unless labels are numbers."""
        return not options.regression
