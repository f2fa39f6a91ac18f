"""Classification of one text or two, or regression."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy, mse_loss
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from ftcluster_common.columns import classification_columns
from ftcluster_common.data_files import TRAIN, short
from ftcluster_common.job import PREDICT
from ftcluster_common.recipe import Recipe, TextClassification
from ftcluster_train.engine.data.sets import draw_rows
from ftcluster_train.engine.data.sources import Rows, class_names, column_batches, columns_of
from ftcluster_train.engine.data.token_store import Sample, Samples, SampleWriter
from ftcluster_train.engine.metrics import default_metrics, measure
from ftcluster_train.engine.tasks.base import Batch, Document, Task
from ftcluster_train.engine.tasks.labels import (
    ClassLabels,
    count_classes,
    find_labels,
    number_labels,
    read_number,
)
from ftcluster_train.errors import TrainError


class TextClassificationTask(Task):
    """Cross entropy over classes or, with `regression`, the squared error."""

    model_class = AutoModelForSequenceClassification
    options: TextClassification

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        self.validation_splits = self.options.validation_splits
        self.labelled = not self.options.regression and self.purpose != PREDICT

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        self._check_trained()
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        sets = self.sets(data)
        first = next(iter(sets.values()))
        labelled = self.purpose != PREDICT
        texts, label = classification_columns(self.options, columns_of(first), labelled)
        columns = (*texts, label) if labelled else texts
        labels = self._labels(first, label)
        names = labels.names or class_names(first, label)
        self._label = label
        sets, drawn = self.with_validation(sets)
        self.keep_rows(sets, folder)
        classes: dict[str, set[int]] = {}
        for split, rows in sets.items():
            writer = self._writer(folder / split)
            cut, classes[split] = self._encode_split(rows, split, columns, labels, limit, writer)
            read = {"text_columns": texts, "label_column": label}
            if names and max(classes[split]) >= len(names):
                raise TrainError(
                    f"{split} has the class {max(classes[split])}, and the data name "
                    f"{len(names)}: {', '.join(names)}"
                )
            about = {"names": names, "columns": read, "rows": len(writer), "cut": cut}
            writer.close(classes=self._count(classes[split]), **about)
            notices += self.truncated(split, cut, limit)
        if self.purpose == "train" and not self.options.regression:
            if len(classes[TRAIN]) == 1:
                notices.append(f"{TRAIN}: all rows have the same label, so nothing is learned")
            count = count_classes(classes.pop(TRAIN), classes)
            if count > 2 and "f1" in (self.options.metrics or ()):
                raise TrainError(
                    f"the metric f1 needs two classes, the data have {count}",
                    "use others: metrics=[accuracy,matthews]",
                )
        return [*notices, *drawn]

    def _check_trained(self) -> None:
        """Make sure that the model that is used predicts what the recipe says."""
        if self.trained and (self.trained.num_labels == 1) != self.options.regression:
            right = str(not self.options.regression).lower()
            raise TrainError(
                f"{self.recipe.model} has {self.trained.num_labels} outputs", f"regression={right}"
            )

    def _labels(self, rows: Rows, column: str) -> ClassLabels:
        """How the labels are read; by the classes of the model that is evaluated, if there is."""
        names = class_names(rows, column)
        if names and self.trained and {*names} <= self.trained.label2id.keys():
            numbers = {str(i): self.trained.label2id[name] for i, name in enumerate(names)}
            return ClassLabels(numbers, self.recipe.model)
        if self.options.regression or self.purpose == PREDICT or names:
            return ClassLabels({})
        words = find_labels(self._values(rows, column), column)
        numbers = number_labels(words)
        if self.trained and (numbers or {*words} <= self.trained.label2id.keys()):
            return ClassLabels(self.trained.label2id, self.recipe.model)
        return ClassLabels(numbers)

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[frozenset[int], str]:
        """The same share of each class."""
        if self.options.regression:
            return super().draw_validation(rows, percent, seed)
        drawn = draw_rows([*self._values(rows, self._label)], percent, seed)
        return drawn, f"{len(drawn)} rows"

    def _values(self, rows: Rows, column: str) -> Iterator[Any]:
        return (value for batch in column_batches(rows, [column], TRAIN) for value in batch[column])

    def _count(self, found: set[int]) -> int:
        """The number of classes."""
        if not self.trained:
            return max(2, max(found) + 1)
        most: int = self.trained.num_labels
        if max(found) >= most:
            raise TrainError(
                f"the data have the class {max(found)}, and {self.recipe.model} has {most}"
            )
        return most

    def _writer(self, folder: Path) -> SampleWriter:
        kind = "d" if self.options.regression else "i"
        return SampleWriter(folder, {**self.token_kinds(), "label": kind})

    def _encode_split(
        self,
        rows: Rows,
        split: str,
        columns: Sequence[str],
        labels: ClassLabels,
        limit: int,
        writer: SampleWriter,
    ) -> tuple[int, set[int]]:
        """Write one split; returns the number of truncated samples, and the classes.

        Args:
            columns: the texts, and the label unless it is predicted.
        """
        kinds = self.token_kinds()
        texts = columns if self.purpose == PREDICT else columns[:-1]
        read = read_number if self.options.regression else labels.read
        cut, classes = 0, set[int]()
        for batch in column_batches(rows, columns, split):
            tokens, too_long = self._tokens({name: batch[name] for name in texts}, split, limit)
            cut += too_long
            for i in range(len(batch[texts[0]])):
                answer = 0 if self.purpose == PREDICT else read(batch[columns[-1]][i], split)
                classes.add(int(answer))
                writer.add({**{name: tokens[name][i] for name in kinds}, "label": [answer]})
        if not len(writer):
            raise TrainError(f"the data have no samples in {split}")
        return cut, classes

    def _tokens(
        self, texts: Mapping[str, list[Any]], split: str, limit: int
    ) -> tuple[dict[str, list[list[int]]], int]:
        """The tokens of a batch, and the number of truncated samples."""
        for name, column in texts.items():
            wrong = [value for value in column if not isinstance(value, str)]
            if wrong:
                raise TrainError(
                    f"{split} has {short(wrong[0])} in column {name}, which is not a text"
                )
        return self.tokenize([*texts.values()], limit)

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        if self.purpose == PREDICT:
            return super().documents(sample, samples)
        [label], names = sample["label"], samples.about["names"]
        if self.trained and not self.options.regression:
            name = str(self.trained.id2label[label])
        else:
            name = f"{label:g}" if self.options.regression or label >= len(names) else names[label]
        return [Document(sample["input_ids"], label=name)]

    def model_settings(self, train_set: Samples) -> dict[str, Any]:
        # the classes' names come from the data, not from the pretrained model
        if self.options.regression:
            return {**_named(["LABEL_0"]), "problem_type": "regression"}
        names = [f"LABEL_{number}" for number in range(train_set.about["classes"])]
        known_names = train_set.about["names"]
        names[: len(known_names)] = known_names
        return {**_named(names), "problem_type": "single_label_classification"}

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.pad(samples, self.tokenizer.padding_side)
        return Batch(inputs, {"labels": self._targets(samples)})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        smoothing = self.recipe.training.label_smoothing_factor
        return self._losses(outputs.logits, targets["labels"], smoothing).sum()

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each sample its number or class, its loss, and the probability of the class."""
        logits = outputs.logits.float()
        losses = self._losses(logits, self._targets(samples))
        if self.options.regression:
            answers, sure = logits.squeeze(-1), torch.ones(len(samples))
        else:
            sure, answers = logits.softmax(dim=-1).max(dim=-1)
        return list(zip(answers.tolist(), losses.tolist(), sure.tolist(), strict=True))

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """The recipe's metrics, and the mean loss."""
        values, losses, _ = zip(*predictions, strict=True)
        labels = [sample["label"][0] for sample in samples]
        classes = None if self.options.regression else samples.about["classes"]
        metrics = measure(self.options.metrics or default_metrics(classes), values, labels)
        return {**metrics, "loss": math.fsum(losses) / len(losses)}

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """The number; or the class by its name, and its probability."""
        if self.options.regression:
            return [{"prediction": value} for value, _, _ in predictions]
        names = self.trained.id2label if self.trained else {}
        return [
            {"prediction": names[value], "probability": round(sure, 6)}
            for value, _, sure in predictions
        ]

    def _targets(self, samples: Sequence[Sample]) -> torch.Tensor:
        kind = torch.float32 if self.options.regression else torch.int64
        return torch.tensor([sample["label"][0] for sample in samples], dtype=kind)

    def _losses(
        self, logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0
    ) -> torch.Tensor:
        """The loss of each sample, in fp32."""
        if self.options.regression:
            return mse_loss(logits.float().squeeze(-1), labels, reduction="none")
        return cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)


def _named(names: Sequence[str]) -> dict[str, Any]:
    numbers = dict(enumerate(names))
    return {"id2label": numbers, "label2id": {name: number for number, name in numbers.items()}}
