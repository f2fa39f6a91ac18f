"""Classification (one or several classes per row) and regression of texts or pairs of texts."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from ftcluster_common.data.class_lists import split_classes
from ftcluster_common.data.class_names import as_word, few, find_labels, flat_labels
from ftcluster_common.data.columns import LOOKED_AT
from ftcluster_common.data.data_files import TRAIN, DataError, short
from ftcluster_common.data.data_sets import is_train
from ftcluster_common.protocol.class_report import ClassReport, report_of_classes, report_of_sets
from ftcluster_common.protocol.job import PREDICT
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.classify import (
    CALIBRATION_METRICS,
    TextClassification,
    classification_columns,
)
from ftcluster_common.tasks.registry import spec_of
from ftcluster_train.engine.adapters import TEMPERATURE, THRESHOLDS
from ftcluster_train.engine.data.sets import Complete, all_rows, draw_rows
from ftcluster_train.engine.data.sources import Rows, class_names, column_batches, columns_of
from ftcluster_train.engine.data.splits import RowKeys, RowNumbers, shared
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.metrics import constant_notice
from ftcluster_train.engine.tasks.base import Batch, Data, Document, Task
from ftcluster_train.engine.tasks.class_numbers import names_of_model, numbered
from ftcluster_train.engine.tasks.classify.calibration import (
    Temperature,
    calibration_error,
    probabilities,
)
from ftcluster_train.engine.tasks.classify.class_choice import (
    Thresholds,
    class_answer,
    reports_of,
    write_settings,
)
from ftcluster_train.engine.tasks.classify.labels import (
    ClassLabels,
    check_classes,
    check_metrics,
    labels_of_model,
    labels_of_named,
    number_labels,
    read_number,
    weights_of_classes,
)
from ftcluster_train.engine.tasks.classify.metrics import default_metrics, measure
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MULTI_LABEL = "multi_label_classification"  # transformers' problem_type


@register
class TextClassificationTask(Task):
    """Trains with cross entropy, binary cross entropy (several classes) or squared error.

    Attributes:
        several: True if a row may have any number of classes.
    """

    name = "text-classification"
    model_class = AutoModelForSequenceClassification
    options: TextClassification

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self.validation_splits = self.options.validation_splits
        self.several = getattr(self.trained, "problem_type", None) == MULTI_LABEL
        self._thresholds, self._temperature = Thresholds(self.trained), Temperature(self.trained)
        self._weights: torch.Tensor | None = None
        self._class_count = getattr(self.trained, "num_labels", 0)

    def inspect_rows(self, rows: Rows) -> None:
        if self.purpose != PREDICT:
            self.options = spec_of(self.options).with_rows(self.options, rows)

    def sets(self, data: Data) -> dict[str, Rows]:
        return self.with_equal_columns(super().sets(data))

    def encode(self, data: Data, longest: int | None, folder: Path) -> list[str]:
        self._check_trained()
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        sets = self.sets(data)
        first, labelled = next(iter(sets.values())), self.purpose != PREDICT
        columns = classification_columns(self.options, columns_of(first), labelled)
        texts, self._label = columns if labelled else (columns[0], ())
        names = self._names_in(sets) if len(self._label) == 1 else []
        if self.options.skip_incomplete and labelled:
            read = (*texts, *self._label)
            sets = {name: Complete(rows, name, read) for name, rows in sets.items()}
        left_out, whole = 0, sets
        asked: Any = self.recipe.options
        notices += spec_of(self.options).reading_notes(asked, self.options, self.uses)
        labels = self._labels(all_rows(sets), names)
        if self.trained and labelled and not self.options.regression and not labels.numbers:
            shown = few([f"{n} is {name}" for n, name in enumerate(names_of_model(self.trained))])
            notices.append(f"labels are the numbers of the model's classes: {shown}")
        names = labels.names or names
        sets, drawn = self.with_validation(sets)
        self.keep_rows(sets, folder)
        classes: dict[str, Counter[int]] = {}
        for split, rows in sets.items():
            kinds = {**self.reader.token_kinds(), "label": "d" if self.options.regression else "i"}
            writer = SampleWriter(folder / split, kinds)
            with self.naming(split):
                cut, classes[split] = self._encode_split(rows, split, texts, labels, limit, writer)
            if split in whole and (left_out := getattr(whole[split], "left_out", 0)):
                notices.append(f"{split}: {left_out} rows without text or class are skipped")
            labelled_by = self.options.label_columns
            read_as: dict[str, Any] = {"text_columns": texts, "label_columns": labelled_by}
            if not labelled_by and self._label:
                read_as["label_column"] = self._label[0]
                one_class = None if self.several else "none"
                read_as["label_separator"] = self.options.label_separator or one_class
            about = {"names": names, "columns": read_as, "rows": len(writer), "cut": cut}
            count = self._count(classes[split], names, split)
            writer.close(classes=count, several=self.several, left_out=left_out, **about)
            notices += self.truncated(split, cut, limit)
        if labelled and not self.options.regression:
            if self.trained:
                names = names_of_model(self.trained)
            trains, own = self.purpose == "train", self.own_metric_names
            check_metrics(self.recipe, self.options, names, self.several, trains, own)
            if self.purpose == "train":
                trained = sum((classes[split] for split in filter(is_train, classes)), Counter())
                others = {name: counts for name, counts in classes.items() if not is_train(name)}
                notices += check_classes(
                    self.recipe, self.options, {TRAIN: trained, **others}, names, self.several
                )
        return [*notices, *drawn]

    def _names_in(self, sets: Mapping[str, Rows]) -> list[str]:
        """Return the class names in the data; [] if the data have none.

        Raises:
            TrainError: data sets have different class names.
        """
        names = {split: class_names(rows, self._label[0]) for split, rows in sets.items()}
        first, *others = names
        for split in others if len(self._options) > 1 else ():
            if names[split] != names[first]:
                raise TrainError(
                    f"{first} and {split} have different class names: "
                    f"{few(names[first] or ['none'])}, and {few(names[split] or ['none'])}",
                    "write the classes of all data sets as texts",
                )
        return names[first]

    def _check_trained(self) -> None:
        """Check that the trained model's outputs match the recipe: classes or a regression."""
        number = getattr(self.trained, "num_labels", 0) == 1 and not self.several
        if self.trained and number != self.options.regression:
            right = str(not self.options.regression).lower()
            raise TrainError(
                f"{self.recipe.model} has {self.trained.num_labels} outputs",
                f"set regression={right}",
            )

    def _labels(self, rows: Rows, names: list[str]) -> ClassLabels:
        """Return the mapping of labels to class numbers, with a trained model's classes if given.

        Args:
            names: class names in the data; [] if the data have none.
        """
        if self.options.regression or self.purpose == PREDICT:
            return ClassLabels({})
        columns = self.options.label_columns
        values = () if columns else islice(self._values(rows), LOOKED_AT)
        several = bool(columns) or any(isinstance(value, list) for value in values)
        if self.trained and several != self.several:
            kind = ("one class", "several classes") if several else ("several classes", "one class")
            raise TrainError(
                f"{self.recipe.model} predicts {kind[0]} per row, but the data have {kind[1]}"
            )
        self.several = several
        known = self.trained.label2id if self.trained else {}
        if names and self.trained:
            used = {*map(as_word, flat_labels(self._values(rows)))}
            return labels_of_named(names, used, known, self.recipe.model, several)
        if names:
            return ClassLabels({}, self.recipe.model, several=several)
        try:
            words = [*columns]
            if not columns:
                [column] = self._label
                words = find_labels(self._values(rows), column, self.purpose == "train")
        except DataError as error:
            raise TrainError(str(error)) from error
        if self.trained:
            return labels_of_model(words, known, self.recipe.model, columns, several)
        return ClassLabels(number_labels(words), columns=columns, several=several)

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[RowNumbers, str]:
        if self.options.regression or self.several:
            return super().draw_validation(rows, percent, seed)
        drawn = draw_rows(self._values(rows), percent, seed)  # same fraction of each class
        return drawn, f"{len(drawn)} rows"

    def keys_of_rows(self, rows: Rows) -> RowKeys:
        """Return the class of each row for stratified splits, if each row has one class."""
        if self.options.regression or self.several:
            return super().keys_of_rows(rows)
        return RowKeys(self._label[0], [*shared(map(as_word, self._values(rows)))])

    def _values(self, rows: Rows) -> Iterator[Any]:
        [column] = self._label
        separator = self.options.label_separator
        return (
            split_classes(value, separator)
            for batch in column_batches(rows, [column], TRAIN)
            for value in batch[column]
        )

    def _count(self, found: Collection[int], names: Sequence[str], split: str) -> int:
        if self.options.regression:
            return 1
        most: int = self.trained.num_labels if self.trained else len(names)
        if found and max(found) >= most:
            who = f"{self.recipe.model} has" if self.trained else "the data name"
            known = f"{who} {most}: {', '.join(names)}"
            raise TrainError(f"{split} has the class {max(found)}, and {known}")
        return most

    def _encode_split(
        self, rows: Rows, split: str, texts: Sequence[str], labels: ClassLabels, limit: int,
        writer: SampleWriter,
    ) -> tuple[int, Counter[int]]:  # fmt: skip
        """Write a set; return its number of truncated samples and its number of rows per class."""
        kinds, cut, classes = self.reader.token_kinds(), 0, Counter[int]()
        for batch in column_batches(rows, (*texts, *self._label), split):
            for name in texts:
                if wrong := [text for text in batch[name] if not isinstance(text, str)]:
                    what = f"{split} has {short(wrong[0])} in column {name}"
                    raise TrainError(f"{what}, which is not a text")
            tokens, too_long = self.reader.tokenize([batch[name] for name in texts], limit)
            cut += too_long
            for i in range(len(batch[texts[0]])):
                cells = [
                    split_classes(batch[name][i], self.options.label_separator)
                    for name in self._label
                ]
                answer: Sequence[float] = [0]  # placeholder, because rows to predict have no label
                if cells:
                    number = self.options.regression
                    answer = [read_number(cells[0], split)] if number else labels.of(cells, split)
                classes.update(map(int, answer))
                writer.add({**{name: tokens[name][i] for name in kinds}, "label": answer})
        if not len(writer):
            raise TrainError(f"the data have no samples in {split}")
        return cut, classes

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        if self.purpose == PREDICT:
            return super().documents(sample, samples)
        if self.options.regression:
            return [Document(sample["input_ids"], label=f"{sample['label'][0]:g}")]
        names = self._names(samples)
        classes = [names[label] for label in sample["label"]]
        return [Document(sample["input_ids"], (), ", ".join(classes) or "(none)", classes)]

    def _names(self, samples: Samples) -> list[str]:
        """Return the class names in the order of the class numbers."""
        if self.trained:
            return names_of_model(self.trained)
        names = [*samples.about.get("names", ())]
        return names or [f"LABEL_{number}" for number in range(samples.about["classes"])]

    def model_settings(self, train_set: Samples) -> dict[str, Any]:
        # class names come from the data; the pretrained model may have other names
        if self.options.regression:
            return {**numbered(["LABEL_0"]), "problem_type": "regression"}
        self.several = train_set.about.get("several", False)
        self._class_count = train_set.about["classes"]
        kind = MULTI_LABEL if self.several else "single_label_classification"
        return {**numbered(self._names(train_set)), "problem_type": kind}

    def weights(self, samples: Samples) -> list[float] | None:
        """Return the weight of each sample's class, and make `loss` use the class weights."""
        if self.options.class_weights is None:
            return None
        labels = [sample["label"][0] for sample in samples]
        names, counts = self._names(samples), Counter(labels)
        by_number = [counts[number] for number in range(len(names))]
        weights = weights_of_classes(self.options.class_weights, by_number, names)
        self._weights = torch.tensor(weights)
        return [weights[label] for label in labels]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.reader.pad(samples, self.tokenizer.padding_side)
        return Batch(inputs, {"labels": self._targets(samples)})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        smoothing = self.recipe.training.label_smoothing_factor
        return self._losses(outputs.logits, targets["labels"], smoothing, self._weights).sum()

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return, for each sample, its loss and prediction.

        For a regression, the prediction is a number. Otherwise it is the most likely class and its
        probability. If `_needs_all_classes` is True, a value for each class follows: a probability
        if a row may have several classes, otherwise a log-probability, which also serves as a
        logit.
        """
        logits = outputs.logits.float()
        losses = self._losses(logits, self._targets(samples)).tolist()
        if self.options.regression:
            return [
                (*pair, 1.0, []) for pair in zip(losses, logits.squeeze(-1).tolist(), strict=True)
            ]
        every = logits.sigmoid() if self.several else logits.softmax(dim=-1)
        sure, likeliest = every.max(dim=-1)
        values = every if self.several else logits.log_softmax(dim=-1)
        rows = values.tolist() if self._needs_all_classes else [[]] * len(samples)
        return list(zip(losses, likeliest.tolist(), sure.tolist(), rows, strict=True))

    @property
    def _needs_all_classes(self) -> bool:
        """True if predictions include a value for each class."""
        tuned = self._thresholds.by_name or self._temperature.value is not None
        tunes = self.purpose == "train" and spec_of(self.options).tunes_on_validation(self.options)
        return bool(self.several or self.options.all_probabilities or tuned or tunes)

    def _probabilities(self, predictions: Sequence[Any]) -> list[list[float]]:
        """Return each row's class probabilities; [] for each row if they were not computed."""
        rows = [row for *_, row in predictions]
        if self.several or not any(rows):
            return rows
        return self._temperature.probabilities(rows)

    def _calibration(self, predictions: Sequence[Any], labels: Sequence[Any]) -> dict[str, float]:
        """Return the calibration errors before and after calibration; {} if not calibrated."""
        if self._temperature.value is None or self.several:
            return {}
        rows, numbers = [row for *_, row in predictions], [label for [label] in labels]
        temperatures = (1.0, self._temperature.value)
        errors = (calibration_error(probabilities(rows, at), numbers) for at in temperatures)
        return dict(zip(CALIBRATION_METRICS, errors, strict=True))

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """Return the recipe's metrics, the mean loss, and the calibration errors, if any.

        The loss is computed from the logits before temperature scaling.
        """
        losses, predicted, _, _ = zip(*predictions, strict=True)
        labels: list[Any] = [sample["label"] for sample in samples]
        report, metrics = self.class_report(predictions, samples), self.options.metrics
        if report is None:
            values = measure(
                metrics or default_metrics(0), predicted, [label for [label] in labels]
            )
        else:
            names = metrics or default_metrics(len(report.classes), self.several)
            values = measure(names, self._classes(predictions, samples), labels, report)
        of_calibration = self._calibration(predictions, labels) if report else {}
        return {**values, "loss": math.fsum(losses) / len(losses), **of_calibration}

    def compared(
        self, predictions: Sequence[Any], samples: Samples
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the predicted and the true answer of each row.

        An answer is a number, a class name, or a list of class names.
        """
        labels = [sample["label"] for sample in samples]
        if self.options.regression:
            return [value for _, value, *_ in predictions], [label for [label] in labels]
        names = self._names(samples)
        chosen, right = (
            [[names[number] for number in numbers] for numbers in rows]
            for rows in (self._classes(predictions, samples), labels)
        )
        if self.several:
            return chosen, right
        return [name for [name] in chosen], [name for [name] in right]

    def doubts(self, predictions: Sequence[Any], samples: Samples) -> str:
        if not self.options.regression:
            return self._temperature.doubt if self.options.calibrate else ""
        labels = [sample["label"][0] for sample in samples]
        return constant_notice([value for _, value, *_ in predictions], labels)

    def fit(self, predictions: Sequence[Any], samples: Samples) -> None:
        if self.several:
            rows = [row for *_, row in predictions]
            labels = [sample["label"] for sample in samples]
            self._thresholds.choose(self._names(samples), rows, labels)
            return
        numbers = [sample["label"][0] for sample in samples]
        if self.options.calibrate:
            self._temperature.choose([row for *_, row in predictions], numbers)
        if metric := self.options.threshold_metric:
            sure = [row[1] for row in self._probabilities(predictions)]
            self._thresholds.choose_for_two(self._names(samples), sure, numbers, metric)

    def class_report(self, predictions: Sequence[Any], samples: Samples) -> ClassReport | None:
        if self.options.regression:
            return None
        names, labels = self._names(samples), [sample["label"] for sample in samples]
        classes = self._classes(predictions, samples)
        if self.several:
            return report_of_sets(classes, labels, names, self._thresholds.of(names))
        return report_of_classes(
            [number for [number] in classes], [number for [number] in labels], names,
            self._thresholds.of_second(names), self._temperature.value,
        )  # fmt: skip

    def use_scores(self, classes: Mapping[str, Any]) -> None:
        if self._needs_all_classes:
            self._thresholds.use(reports_of(classes))
            self._temperature.use(reports_of(classes))

    def check_model(self, model: "PreTrainedModel") -> None:  # noqa: ARG002
        """Set `model_notices` to the threshold and temperature of a trained model."""
        if not self.trained or self.several or self.options.regression:
            return
        names, notices = names_of_model(self.trained), []
        if (value := self._temperature.value) is not None:
            notices.append(f"the probabilities are calibrated: temperature {value:.4g}")
        if (at := self._thresholds.of_second(names)) is not None:
            notices.append(f"{names[1]} is predicted from a probability of {at:.4g}")
        self.model_notices = notices

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the thresholds and the temperature into the model's configuration."""
        thresholds, temperature = self._thresholds.by_name or None, self._temperature.value
        write_settings(model, folder, {THRESHOLDS: thresholds, TEMPERATURE: temperature})

    def _classes(self, predictions: Sequence[Any], samples: Samples) -> list[list[int]]:
        """Return the predicted classes of each row.

        If each row has one class, this is the most likely class. If there are exactly two classes,
        a tuned threshold may decide instead. If rows may have several classes, a row gets all
        classes whose probability is at least their threshold.
        """
        names = self._names(samples)
        if not self.several:
            at = self._thresholds.of_second(names)
            if at is not None:
                return [[int(row[1] >= at)] for row in self._probabilities(predictions)]
            return [[likeliest] for _, likeliest, *_ in predictions]
        limits = self._thresholds.of(names)
        return [[n for n, p in enumerate(row) if p >= limits[n]] for *_, row in predictions]

    def answers(self, predictions: Sequence[Any], samples: Samples) -> list[dict[str, Any]]:
        """Return each row's predicted number, or its predicted classes with probabilities."""
        if self.options.regression:
            return [{"prediction": value} for _, value, *_ in predictions]
        names, every = self._names(samples), self.options.all_probabilities
        rows, classes = self._probabilities(predictions), self._classes(predictions, samples)
        return [
            class_answer(names, chosen, sure, row, self.several, every)
            for (_, _, sure, _), row, chosen in zip(predictions, rows, classes, strict=True)
        ]

    def _targets(self, samples: Sequence[Sample]) -> torch.Tensor:
        if self.several:
            targets = torch.zeros(len(samples), self._class_count)
            for row, sample in zip(targets, samples, strict=True):
                row[sample["label"]] = 1.0
            return targets
        kind = torch.float32 if self.options.regression else torch.int64
        return torch.tensor([sample["label"][0] for sample in samples], dtype=kind)

    def _losses(
        self, logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return the loss of each sample, in fp32."""
        logits = logits.float()
        if self.options.regression:
            return mse_loss(logits.squeeze(-1), labels, reduction="none")
        if self.several:  # mean over the classes, as in transformers
            losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
            return losses.mean(dim=-1)
        return cross_entropy(logits, labels, weights, reduction="none", label_smoothing=smoothing)
