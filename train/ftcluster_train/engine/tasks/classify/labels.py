"""Conversion of labels in classification data to class numbers, and checks of labels."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcluster_common.data.class_names import (
    WHOLE,
    are_unnamed,
    as_word,
    few,
    match_names,
)
from ftcluster_common.data.columns import as_flag
from ftcluster_common.data.data_files import TRAIN, short
from ftcluster_common.data.data_sets import is_test
from ftcluster_common.data.numbers import as_number, is_decimal, why_no_number
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.classify import CALIBRATION_METRICS, TextClassification
from ftcluster_common.tasks.registry import spec_of
from ftcluster_train.engine.tasks.classify.metrics import FEWEST, default_metrics
from ftcluster_train.errors import TrainError

MOST_DIGITS = 16  # maximum number of digits of a class number


TRAINED = "the training data"


@dataclass(frozen=True)
class ClassLabels:
    """The conversion of labels to class numbers.

    Attributes:
        numbers: class number of each label; empty if labels in the data are class numbers.
        owner: name of the model or data that defines the classes, for messages.
        columns: names of the 0/1 columns, one for each class and named after it.
        several: True if a row may have several classes.
        aliases: class number of each label that differs in spelling from the class name.
    """

    numbers: Mapping[str, int]
    owner: str = TRAINED
    columns: Sequence[str] = ()
    several: bool = False
    aliases: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The labels in the order of their class numbers."""
        return sorted(self.numbers, key=self.numbers.__getitem__)

    def of(self, cells: Sequence[Any], where: str) -> list[int]:
        """Return the class numbers of a row.

        Args:
            cells: values of the row in the label columns.
            where: location of the row, for error messages.

        Raises:
            TrainError: a label is missing or unknown.
        """
        labels: Iterable[Any] = cells
        if self.columns:
            flags = zip(self.columns, map(as_flag, cells), strict=True)
            labels = (name for name, flag in flags if flag)
        elif self.several and isinstance(cells[0], list):
            labels = cells[0]
        return sorted({self.read(label, where) for label in labels})

    def read(self, label: Any, where: str) -> int:
        """Return the class number of a label.

        Raises:
            TrainError: the label is missing or unknown.
        """
        word = as_word(label)
        if not self.numbers:
            number = WHOLE.fullmatch(word) and len(word) < MOST_DIGITS
            # any other owner is a trained model, which cannot get more classes
            trains = self.owner == TRAINED
            hint = "for other numbers: regression=true" if trains else ""
            return read_class(int(float(word)) if number else label, where, hint)
        if word in self.aliases:
            return self.aliases[word]
        if word not in self.numbers:
            has = f"and {self.owner} has {few(self.names)}"
            raise TrainError(f"{where} has the label {short(label)}, {has}")
        return self.numbers[word]


def number_labels(words: Sequence[str]) -> dict[str, int]:
    """Return the class number of each label; {} if -1 is a label.

    In many data sets the label -1 means "not labelled".

    Args:
        words: distinct labels from `find_labels`.

    >>> number_labels(["0", "1"]), number_labels(["01", "1"]), number_labels(["-1", "0"])
    ({'0': 0, '1': 1}, {'01': 0, '1': 1}, {})
    """
    return {} if words[:1] == ["-1"] else {word: n for n, word in enumerate(words)}


def labels_of_model(
    words: Collection[str],
    known: Mapping[str, int],
    model: str,
    columns: Sequence[str] = (),
    several: bool = False,
) -> ClassLabels:
    """Return the mapping of labels to a trained model's classes: by class name or class number.

    Labels are read as class numbers only if no class of the model has a number as its name. Names
    may differ in case, see `match_names`.

    Args:
        words: distinct labels in the data.
        known: class numbers of the model, keyed by class name.
        model: name of the model.
        columns: see `ClassLabels`.
        several: see `ClassLabels`.

    Raises:
        TrainError: the model lacks a class of the data. The message lists both sets of classes.

    >>> labels_of_model(["0", "1"], {"bad": 0, "good": 1}, "m").numbers
    {}
    >>> labels_of_model(["0", "1"], {"1": 0, "2": 1}, "m").numbers
    Traceback (most recent call last):
    ftcluster_train.errors.TrainError: the data have the classes 0, and m has 1, 2
    >>> labels_of_model(["Bad", "GOOD"], {"good": 0, "bad": 1}, "m").read("Bad", "")
    1
    """
    numbers = {str(number) for number in range(len(known))}
    if not {*words} <= known.keys() and {*words} <= numbers and not any(map(is_decimal, known)):
        return ClassLabels({}, model, columns, several)
    wanted = sorted(words)
    matched = match_model(wanted, known)
    if not columns:  # with columns, a class may have no rows, so no check
        check_known(wanted, matched, known, model)
    return ClassLabels(known, model, columns, several, matched)


def match_model(words: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """Return the model's class number for each class name in the data that the model has."""
    names = list(known)
    pairs = zip(words, match_names(words, names), strict=True)
    return {word: known[names[place]] for word, place in pairs if place is not None}


def check_known(
    words: Sequence[str], matched: Mapping[str, int], known: Mapping[str, int], model: str
) -> None:
    """Check that the model has each class of the data.

    Raises:
        TrainError: the model lacks a class. The message lists both sets of classes.
    """
    if unknown := [word for word in words if word not in matched]:
        names = sorted(known, key=known.__getitem__)
        raise TrainError(
            f"the data have the classes {few(unknown)}, and {model} has {few(names)}",
            "use the model's class names in the data",
        )


def labels_of_named(
    names: Sequence[str], used: Collection[str], known: Mapping[str, int], model: str,
    several: bool,
) -> ClassLabels:  # fmt: skip
    """Return the mapping of the data's class numbers to a trained model's class numbers.

    Classes are matched by name.

    Args:
        names: class names in the data, in the order of the class numbers.
        used: class numbers that occur in rows, as strings.

    Raises:
        TrainError: the model lacks a class that occurs in rows. The message lists both sets of
            classes.
    """
    if not {*names} <= known.keys() and len(names) == len(known) and are_unnamed([*known]):
        return ClassLabels({}, model, several=several)
    matched = match_model(names, known)
    in_use = [name for number, name in enumerate(names) if str(number) in used]
    check_known(in_use, matched, known, model)
    numbers = {str(n): matched[name] for n, name in enumerate(names) if name in matched}
    return ClassLabels(numbers, model, several=several)


def weights_of_classes(
    wanted: str | Mapping[str, Any], counts: Sequence[int], names: Sequence[str]
) -> list[float]:
    """Return the weight of each class in the loss.

    Balanced weights are rows / (classes * rows of the class), as in scikit-learn.

    Args:
        wanted: `balanced`, or the weights of some classes, keyed by class name.
        counts: number of rows of each class; for `balanced`, a class without rows has weight 1.

    Raises:
        TrainError: `wanted` has a name that no class has.

    >>> weights_of_classes("balanced", [3, 1], ["a", "b"])
    [0.6666666666666666, 2.0]
    """
    if isinstance(wanted, str):
        present = sum(map(bool, counts))
        return [sum(counts) / (present * count) if count else 1.0 for count in counts]
    if unknown := [name for name in wanted if name not in names]:
        raise TrainError(f"class_weights has {few(unknown)}, but the classes are {few(names)}")
    return [float(wanted.get(name, 1.0)) for name in names]


def read_class(label: Any, where: str, hint: str = "") -> int:
    """Return a row's label as a class number.

    Raises:
        TrainError: the label is not a class number; in many test sets -1 means "not labelled".
    """
    if isinstance(label, bool) or not isinstance(label, int):
        raise TrainError(
            f"{where} has the label {short(label)}, not a class number (0, 1, ...)", hint
        )
    if label < 0:
        raise TrainError(f"{where} has the label {label}, so it is not labelled")
    return label


def read_number(label: Any, where: str) -> float:
    """Return a row's label as a number, for a regression.

    Raises:
        TrainError: the label is not a number.
    """
    number = as_number(label)
    if number is None:
        raise TrainError(f"{where} has the label {short(label)}, {why_no_number(label)}")
    return number


def check_metrics(
    recipe: Recipe,
    options: TextClassification,
    names: Sequence[str],
    several: bool,
    trains: bool,
    own_metrics: Sequence[str] = (),
) -> None:
    """Check that the recipe's metrics can be computed for these classes.

    Args:
        trains: True for a training run.
        own_metrics: names of the user's own metrics.

    Raises:
        TrainError: a metric does not apply to these classes.
    """
    metrics = options.metrics or default_metrics(len(names), several)
    if several and (wrong := {"f1", "matthews"} & {*metrics}):
        raise TrainError(
            f"{', '.join(sorted(wrong))} cannot be measured if a row may have several classes",
            "use other metrics: metrics=[f1_micro,f1_macro]",
        )
    if len(names) > 2 and "f1" in metrics:
        raise TrainError(
            f"the metric f1 needs exactly two classes, but the data have {len(names)}",
            "use other metrics: metrics=[accuracy,f1_macro,f1_weighted]",
        )
    best = (recipe.training.metric_for_best_model or "").removeprefix("eval_")
    of_calibration = CALIBRATION_METRICS if options.calibrate else ()
    measured = (*metrics, *own_metrics, "loss", *of_calibration)
    if trains and best and len(options.validation_splits) == 1 and best not in measured:
        raise TrainError(
            f"metric_for_best_model is {best}, which is not among the metrics for {len(names)} "
            f"classes: {', '.join(metrics)}",
            f"measure it: metrics=[{','.join((*metrics, best))}]",
        )


def check_classes(
    recipe: Recipe, options: TextClassification, classes: Mapping[str, Mapping[int, int]],
    names: Sequence[str], several: bool,
) -> list[str]:  # fmt: skip
    """Check that a model can be trained for these classes, and return notices.

    Args:
        options: options from the recipe, completed with values detected in the data.
        classes: number of rows of each class number, for each set.

    Raises:
        TrainError: a model cannot be trained for these classes.
    """
    train, columns = classes[TRAIN], options.label_columns
    if several:
        if tuned := spec_of(options).tunes_on_validation(options):
            raise TrainError(
                f"{' and '.join(tuned)} cannot be used if a row may have several classes: each "
                "class gets a threshold anyway",
                f"remove {' and '.join(tuned)}",
            )
        smoothing = recipe.training.label_smoothing_factor
        if options.class_weights or smoothing:
            raise TrainError(
                "class_weights and label_smoothing_factor are not supported if a row may have "
                "several classes"
            )
        unknown = [names[number] for number in range(len(names)) if number not in train]
        notices = [f"{TRAIN}: no row has the class {', '.join(unknown)}"] if unknown else []
        if columns != getattr(recipe.options, "label_columns", ()):
            notices.append(
                f"no column has the classes, so each of these columns of 0 and 1 is a class: "
                f"{few(columns)}"
            )
        for split in _tuned_set(recipe, classes)[:1]:
            in_set = classes[split]
            rare = [name for number, name in enumerate(names) if in_set.get(number, 0) < FEWEST]
            if rare:
                notices.append(
                    f"{split}: the threshold of each class with fewer than {FEWEST} rows stays at "
                    f"0.5: {few(rare)}"
                )
        return [f"a row may have several of the classes {few(names)}", *notices]
    if len(train) == 1:
        raise TrainError(
            f"all rows of {TRAIN} have the class {names[next(iter(train))]}, so there is nothing "
            "to learn",
            "add rows of another class",
        )
    for name, counts_of_set in classes.items():
        if unknown := [names[n] for n in sorted(counts_of_set.keys() - train.keys())]:
            raise TrainError(f"{name} has classes that {TRAIN} lacks: {', '.join(unknown)}")
    notices = _threshold_notices(recipe, options, classes, names)
    if not options.class_weights:
        return notices
    counts = [train.get(number, 0) for number in range(len(names))]
    weights = weights_of_classes(options.class_weights, counts, names)
    shown = few([f"{n} {w:.4g}" for n, w in zip(names, weights, strict=True)])
    return [*notices, f"class weights: {shown}; evaluations compute the loss without weights"]


def _tuned_set(recipe: Recipe, classes: Mapping[str, Mapping[int, int]]) -> Sequence[str]:
    """Return the validation sets; thresholds are tuned on the first one, see `evaluate`."""
    best = (recipe.training.metric_for_best_model or "").rpartition("_")[2]
    sets = (name for name in classes if name != TRAIN and not is_test(name))
    return sorted(sets, key=lambda name: not name.endswith(best))


def _threshold_notices(
    recipe: Recipe, options: TextClassification, classes: Mapping[str, Mapping[int, int]],
    names: Sequence[str],
) -> list[str]:  # fmt: skip
    """Return a notice if the validation set is too small to tune a threshold.

    Raises:
        TrainError: the recipe tunes a threshold, but the number of classes is not two.
    """
    if options.threshold_metric is None:
        return []
    if len(names) != 2:
        raise TrainError(
            f"threshold_metric needs exactly two classes, the data have {len(names)}",
            "remove threshold_metric",
        )
    for split in _tuned_set(recipe, classes)[:1]:
        if min(classes[split].get(number, 0) for number in (0, 1)) < FEWEST:
            return [
                f"{split}: the threshold stays at 0.5, because a class has fewer than {FEWEST} rows"
            ]
    return []
