"""The task few-shot-classification: training a classifier on few rows, as in SetFit."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from ftcluster_common.data.class_names import as_word, find_labels
from ftcluster_common.data.column_uses import Columns
from ftcluster_common.data.data_files import PARQUET, DataError, Files, Row, Table, kind_of, short
from ftcluster_common.data.row_checks import CheckRow, check_columns, is_class
from ftcluster_common.limits import limited
from ftcluster_common.tasks.classify import TextClassification, classification_columns
from ftcluster_common.tasks.spec import Options, TaskSpec

MOST_ROWS = 1400  # this many rows make about a million different pairs


@dataclass(frozen=True)
class FewShotClassification(Options):
    """Trains a classifier on few rows of each class (SetFit, Tunstall et al. 2022).

    First, embeddings are trained to be similar for texts of the same class and different for texts
    of different classes. Then a logistic regression learns to classify the embeddings. Fields are
    the same as in SetFit.

    Attributes:
        text_columns: column with the text. Default: detected from the column names.
        label_column: column with the class.
        num_samples: maximum number of training rows of each class; further rows are ignored.
            Default: all rows.
        max_length: maximum number of tokens of a text; longer texts are truncated.
        pooling: method that computes an embedding from token vectors. `auto` uses the pooling in
            the model's folder if sentence-transformers wrote it, otherwise the mean.
        normalize: True to classify embeddings that are scaled to length 1. `auto` uses the setting
            in the model's folder, or false if there is none.
        sampling_strategy: rule that selects the pairs of an epoch. There are two kinds of pairs:
            same class and different classes. unique uses each pair once, oversampling repeats pairs
            of the rarer kind, and undersampling drops pairs of the more frequent kind.
        num_iterations: number of pairs of each kind to make for each row. Replaces
            sampling_strategy.
        setfit_head: True to also save the head for SetFit, as a pickle. Because pickles may run
            code, ftcluster.load and `ftcluster export-model` then refuse the model's folder.
        validation_split_percentage: percentage of the rows to use as the validation set if the data
            have none.
    """

    text_columns: tuple[str, ...] = limited((), at_most=1)
    label_column: str = "label"
    num_samples: int | None = limited(None, at_least=2)
    max_length: int = limited(256, at_least=3)
    pooling: Literal["auto", "mean", "cls"] = "auto"
    normalize: Literal["auto", True, False] = "auto"
    sampling_strategy: Literal["oversampling", "undersampling", "unique"] = "oversampling"
    num_iterations: int | None = limited(None, at_least=1)
    setfit_head: bool = False
    validation_split_percentage: float = limited(10.0, at_least=0.001, at_most=50)

    # settings of embeddings that users of this task cannot change
    loss: ClassVar[str] = "cosine"
    reads_scores: ClassVar[bool] = True
    reads_margins: ClassVar[bool] = False
    scale: ClassVar[float] = 1.0
    least_margin: ClassVar[float] = 0.0
    symmetric: ClassVar[bool] = False
    query_prompt: ClassVar[str | None] = None
    text_prompt: ClassVar[str | None] = None
    matryoshka_dims: ClassVar[tuple[int, ...]] = ()
    matryoshka_weights: ClassVar[tuple[float, ...]] = ()
    hard_negatives: ClassVar[int] = 0


def few_shot_columns(
    options: FewShotClassification, columns: Sequence[str], labelled: bool = True
) -> tuple[str, str]:
    """Return the column with texts and the column with classes, which may be "".

    Raises:
        DataError: there are no such columns. The message lists the columns and shows how to name
            them in a recipe.
    """
    plain = TextClassification(options.text_columns, options.label_column)
    texts, labels = classification_columns(plain, columns, labelled)
    if len(texts) > 1:
        raise DataError(
            f"several columns may have the text: {', '.join(texts)}; choose one of them: "
            f"text_columns={texts[0]}"
        )
    return texts[0], "".join(labels)


def problem_of_shots(classes: Sequence[str]) -> str:
    """Return why rows with these classes cannot be paired, or "" if they can.

    >>> problem_of_shots(["a", "b", "a"]), problem_of_shots(["a", "a"])
    ('', 'all rows have the class a; add rows of other classes')
    """
    counts = Counter(classes)
    if len(counts) == 1:
        return f"all rows have the class {classes[0]}; add rows of other classes"
    if max(counts.values(), default=0) < 2:
        return "no class has two rows; add rows, 8 or more of each class"
    if len(classes) > MOST_ROWS:
        return (
            f"{len(classes)} rows make too many pairs; use fewer rows of each class "
            "(num_samples=50), or train all rows: ftcluster train classify"
        )
    return ""


def drawn_shots(classes: Sequence[str], count: int | None) -> list[int]:
    """Return the indices of the first `count` rows of each class; None means all rows.

    >>> drawn_shots(["a", "a", "b", "a"], 2)
    [0, 1, 2]
    """
    seen = Counter[str]()
    kept = []
    for number, name in enumerate(classes):
        seen[name] += 1
        if count is None or seen[name] <= count:
            kept.append(number)
    return kept


def _row_problem(text: str, label: str, row: Row) -> str:
    problem = check_columns([text], [label] if label else [], row)
    if not problem and label and not is_class(row[label]):
        empty = row[label] is None or row[label] == ""
        what = "empty" if empty else f"{short(row[label])}, not a class: a word, or a number"
        return f"{label} is {what}"
    return problem


class FewShotClassificationSpec(TaskSpec[FewShotClassification]):
    """The declaration of the task few-shot-classification."""

    name = "few-shot-classification"
    fields = FewShotClassification
    recipe = "few-shot"
    pipeline = "sentence-similarity"
    scaled_by = {"normalize": ("loss",)}
    mixes_data = False  # pairs are made from all rows of a class
    training_fields = (
        *TaskSpec.training_fields, "num_samples", "sampling_strategy", "num_iterations",
        "setfit_head",
    )  # fmt: skip

    def columns(
        self, options: FewShotClassification, columns: Sequence[str], answered: bool
    ) -> Columns:
        """Return the columns with the text and the class."""
        text, label = few_shot_columns(options, columns, answered)
        return {"text": (text,), "label": (label,) if answered and label else ()}

    def row_check(
        self, options: FewShotClassification, answered: bool, columns: Sequence[str]
    ) -> CheckRow:
        """Return a check of a row's text and class."""
        text, label = few_shot_columns(options, columns, answered)
        return partial(_row_problem, text, label if answered else "")

    def row_form(self, options: FewShotClassification, answered: bool) -> str:
        """Describe a row that contains a text and a class."""
        text = ", ".join(options.text_columns) or "a column of text"
        return f"each row has {text}" + f" and {options.label_column} (a class)" * answered

    def metric_names(self, options: FewShotClassification) -> tuple[str, ...]:
        """Return the names of the classification metrics."""
        return ("accuracy", "f1", "f1_macro", "loss")

    def file_problems(
        self, options: FewShotClassification, files: Files, trains: bool
    ) -> list[str]:
        """Return a problem if no pairs can be made from the rows of the training files."""
        if not files or not trains or any(kind_of(file) == PARQUET for file in files):
            return []
        labels = [row[few_shot_columns(options, list(row))[1]] for row in Table(files)]
        try:
            find_labels(labels, options.label_column)
        except DataError as error:
            return [f"{files[0]}: {error}"]
        classes = [*map(as_word, labels)]
        kept = drawn_shots(classes, options.num_samples)
        problem = problem_of_shots([classes[number] for number in kept])
        return [f"{files[0]}: {problem}"] if problem else []

    def counts_classes(self, options: FewShotClassification) -> bool:
        """Return True, because labels are classes."""
        return True

    def has_classes(self, options: FewShotClassification) -> bool:
        """Return True, because the model predicts classes."""
        return True

    def smooths_labels(self, options: FewShotClassification) -> bool:
        """Return False, because the loss is over pairs."""
        return False

    def compares_batch(self, options: FewShotClassification) -> bool:
        """Return True, because the loss compares the embeddings of two texts."""
        return True

    def reads_modules(self, options: FewShotClassification) -> bool:
        """Return True, because the model's folder may define pooling and prompts."""
        return True

    def texts_of_a_sample(self, options: FewShotClassification) -> int:
        """Return 2, because a sample is a pair of texts."""
        return 2
