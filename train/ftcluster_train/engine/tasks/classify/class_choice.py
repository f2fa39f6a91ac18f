"""Probability thresholds of classes, and the format of predicted classes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import CONFIG_NAME, PretrainedConfig

from ftcluster_common.protocol.class_report import ClassReport, read_report
from ftcluster_train.engine.adapters import THRESHOLDS
from ftcluster_train.engine.tasks.classify.metrics import FEWEST, HALF, best_threshold

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Thresholds:
    """The probability thresholds of classes.

    A class is predicted if its probability is at least the threshold of the class.

    Args:
        trained: configuration of a trained model, which may contain thresholds; None for a new
            model.
    """

    def __init__(self, trained: PretrainedConfig | None) -> None:
        self._by_name: Mapping[str, float] = getattr(trained, THRESHOLDS, None) or {}

    def choose_for_two(
        self, names: Sequence[str], sure: Sequence[float], labels: Sequence[int], metric: str
    ) -> None:
        """Choose the threshold of the second of two classes; 0.5 if one of the classes is rare.

        Args:
            names: names of both classes.
            sure: probability of the second class, for each row.
            labels: number of the true class, for each row.
            metric: metric to maximize.
        """
        positive = [label == 1 for label in labels]
        is_rare = min(sum(positive), len(positive) - sum(positive)) < FEWEST
        at = HALF if is_rare else best_threshold(sure, positive, metric)
        self._by_name = {names[1]: at}

    def of_second(self, names: Sequence[str]) -> float | None:
        """Return the threshold of the second of two classes; None if none was chosen."""
        return self._by_name.get(names[1]) if len(names) == 2 else None

    def choose(
        self, names: Sequence[str], rows: Sequence[Sequence[float]], labels: Sequence[Sequence[int]]
    ) -> None:
        """Choose, for each class, the threshold with the highest F1; 0.5 for rare classes.

        Args:
            names: names of all classes.
            rows: probabilities of all classes, for each row.
            labels: numbers of the true classes, for each row.
        """
        self._by_name = {
            name: best_threshold(column, [number in label for label in labels])
            if sum(number in label for label in labels) >= FEWEST
            else HALF
            for number, (name, column) in enumerate(
                zip(names, zip(*rows, strict=True), strict=True)
            )
        }

    def use(self, reports: Iterator[ClassReport]) -> None:
        """Use the thresholds from the class reports of an evaluation."""
        for report in reports:
            limits = {scores.name: scores.threshold for scores in report.classes}
            self._by_name = {name: at for name, at in limits.items() if at is not None}

    def of(self, names: Sequence[str]) -> list[float]:
        """Return the thresholds of classes; 0.5 for a class without a chosen threshold."""
        return [self._by_name.get(name, HALF) for name in names]

    @property
    def by_name(self) -> dict[str, float]:
        """The threshold of each class; empty if no thresholds were chosen."""
        return dict(self._by_name)


def write_settings(model: "PreTrainedModel", folder: Path, settings: Mapping[str, Any]) -> None:
    """Write fields into the configuration of a saved model.

    Args:
        settings: value of each field; None removes the field, which may come from the base model.
    """
    changed = [
        name for name, value in settings.items() if getattr(model.config, name, None) != value
    ]
    for name in changed:
        if settings[name] is None:
            delattr(model.config, name)
        else:
            setattr(model.config, name, settings[name])
    # a folder of adapters has no model configuration
    if changed and (folder / CONFIG_NAME).exists():
        model.config.save_pretrained(folder)


def reports_of(classes: Mapping[str, Any]) -> Iterator[ClassReport]:
    """Yield the class reports of an evaluation, see `Scores`."""
    return map(read_report, classes.values())


def class_answer(
    names: Sequence[str], classes: Sequence[int], sure: float, row: Sequence[float], several: bool,
    every: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the output fields for a row: its predicted class names and their probabilities.

    Args:
        classes: numbers of the predicted classes.
        sure: probability of the most likely class.
        row: probabilities of all classes; [] if they are not available.
        several: True if a row may have several classes.
        every: True to include the probabilities of all classes.
    """
    answer: dict[str, Any] = {
        "prediction": [names[number] for number in classes],
        "probability": [round(row[n], 6) if row else round(sure, 6) for n in classes],
    }
    if not several:
        answer = {name: value for name, [value] in answer.items()}
    if every:
        rounded = (round(value, 6) for value in row)
        answer["probabilities"] = dict(zip(names, rounded, strict=True))
    return answer
