"""The choice of a row's classes from their probabilities, and class names in a model."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig

from ftcluster_common.protocol.class_report import ClassReport, read_report
from ftcluster_train.engine.tasks.classify.metrics import FEWEST, HALF, best_threshold

if TYPE_CHECKING:
    from transformers import PreTrainedModel

THRESHOLDS = "label_thresholds"  # field of a model's configuration: thresholds by class name


class Thresholds:
    """The minimum probability at which each class is predicted, if a row may have several.

    Args:
        trained: configuration of a trained model, which may have thresholds.
    """

    def __init__(self, trained: PretrainedConfig | None) -> None:
        self._by_name: Mapping[str, float] = getattr(trained, THRESHOLDS, None) or {}

    def choose(
        self, names: Sequence[str], rows: Sequence[Sequence[float]], labels: Sequence[Sequence[int]]
    ) -> None:
        """Choose the threshold of each class that has the highest F1; 0.5 for a rare class.

        Args:
            rows: probabilities of all classes, for each row.
            labels: numbers of the right classes, for each row.
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
        """Use the thresholds of an evaluation."""
        for report in reports:
            limits = {one.name: one.threshold for one in report.classes}
            self._by_name = {name: at for name, at in limits.items() if at is not None}

    def of(self, names: Sequence[str]) -> list[float]:
        """Return the thresholds of classes, 0.5 if none was chosen."""
        return [self._by_name.get(name, HALF) for name in names]

    def write(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the thresholds, if there are any, into the configuration of a saved model."""
        if self._by_name:
            setattr(model.config, THRESHOLDS, dict(self._by_name))
            model.config.save_pretrained(folder)


def reports_of(classes: Mapping[str, Any]) -> Iterator[ClassReport]:
    """Return the class reports of an evaluation, see `Scores`."""
    return map(read_report, classes.values())


def class_answer(
    names: Sequence[str], classes: Sequence[int], sure: float, row: Sequence[float], several: bool,
    every: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the output for a row: its class or classes by name, and their probabilities.

    Args:
        classes: numbers of the predicted classes.
        sure: probability of the most likely class.
        row: probabilities of all classes, or empty.
        several: True if a row may have several classes.
        every: True if the probabilities of all classes are written.
    """
    answer: dict[str, Any] = {
        "prediction": [names[number] for number in classes],
        "probability": [round(row[n], 6) if row else round(sure, 6) for n in classes],
    }
    if not several:
        answer = {name: one for name, [one] in answer.items()}
    if every:
        rounded = (round(value, 6) for value in row)
        answer["probabilities"] = dict(zip(names, rounded, strict=True))
    return answer
