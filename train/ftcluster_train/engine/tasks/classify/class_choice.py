"""The classes of a model by name, and which of them a row is given of their probabilities."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig

from ftcluster_common.protocol.class_report import ClassReport, read_report
from ftcluster_train.engine.tasks.classify.metrics import FEWEST, HALF, best_threshold

if TYPE_CHECKING:
    from transformers import PreTrainedModel

THRESHOLDS = "label_thresholds"  # in the configuration of a model: by the name of a class


class Thresholds:
    """The probability from which each class is given, where a row may have several.

    Args:
        trained: the configuration of a trained model, which may have them.
    """

    def __init__(self, trained: PretrainedConfig | None) -> None:
        self._by_name: Mapping[str, float] = getattr(trained, THRESHOLDS, None) or {}

    def choose(
        self, names: Sequence[str], rows: Sequence[Sequence[float]], labels: Sequence[Sequence[int]]
    ) -> None:
        """Take those with which each class has the highest F1; one half for a class with few rows.

        Args:
            rows: of each row the probabilities of all classes.
            labels: of each row the numbers of its classes.
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
        """Take those of an evaluation."""
        for report in reports:
            limits = {one.name: one.threshold for one in report.classes}
            self._by_name = {name: at for name, at in limits.items() if at is not None}

    def of(self, names: Sequence[str]) -> list[float]:
        """Those of classes, one half where none was chosen."""
        return [self._by_name.get(name, HALF) for name in names]

    def write(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write them, if there are some, into the configuration of a saved model."""
        if self._by_name:
            setattr(model.config, THRESHOLDS, dict(self._by_name))
            model.config.save_pretrained(folder)


def reports_of(classes: Mapping[str, Any]) -> Iterator[ClassReport]:
    """The reports of an evaluation, see `Scores`."""
    return map(read_report, classes.values())


def class_answer(
    names: Sequence[str], classes: Sequence[int], sure: float, row: Sequence[float], several: bool,
    every: bool,
) -> dict[str, Any]:  # fmt: skip
    """What is written of a row: its class or classes by name, and how probable they are.

    Args:
        classes: the numbers of those that it is given.
        sure: the probability of the likeliest one.
        row: the probabilities of all classes, or nothing.
        several: whether a row may have several.
        every: whether all probabilities are written.
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
