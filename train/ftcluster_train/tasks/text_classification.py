"""Classification of one text or two, or regression."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy, mse_loss
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from ftcluster_common.recipe import Recipe, TextClassification
from ftcluster_train.data.sources import Rows, class_names, column_batches, load_rows
from ftcluster_train.data.token_store import Sample, Samples, SampleWriter
from ftcluster_train.errors import TrainError
from ftcluster_train.metrics.glue import default_metrics, measure
from ftcluster_train.tasks.base import Batch, Task
from ftcluster_train.tasks.labels import count_classes, read_class, read_number


class TextClassificationTask(Task):
    """Cross entropy over classes or, with `regression`, the squared error."""

    model_class = AutoModelForSequenceClassification

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(recipe, tokenizer)
        assert isinstance(recipe.options, TextClassification)
        self.options = recipe.options
        self.splits = ("train", *self.options.validation_splits)
        self.check_padding()

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        classes: dict[str, set[int]] = {}
        for split, rows in load_rows(data, self.recipe.data_config, self.splits).items():
            cut, classes[split] = self._encode_split(rows, split, limit, folder / split)
            if cut:
                notices.append(f"{split}: {cut} samples were truncated to {limit} tokens")
        if not self.options.regression:
            found = count_classes(classes.pop("train"), classes)
            if found > 2 and "f1" in (self.options.metrics or ()):
                raise TrainError(
                    f"the metric f1 needs two classes, the data have {found}",
                    "use others: metrics=[accuracy,matthews]",
                )
        return notices

    def _encode_split(
        self, rows: Rows, split: str, limit: int, folder: Path
    ) -> tuple[int, set[int]]:
        """Write one split; returns the number of truncated samples, and the classes."""
        texts, label = self.options.text_columns, self.options.label_column
        read = read_number if self.options.regression else read_class
        kinds = self.token_kinds()
        writer = SampleWriter(folder, {**kinds, "label": "d" if self.options.regression else "i"})
        cut, classes = 0, {0}
        for batch in column_batches(rows, (*texts, label), split):
            columns, too_long = self._tokens([batch[name] for name in texts], split, limit)
            cut += too_long
            for i, value in enumerate(batch[label]):
                answer = read(value, split)
                classes.add(int(answer))
                writer.add({**{name: columns[name][i] for name in kinds}, "label": [answer]})
        if not len(writer):
            raise TrainError(f"the data have no samples in {split}")
        writer.close(classes=max(2, max(classes) + 1), names=class_names(rows, label))
        return cut, classes

    def _tokens(
        self, texts: Sequence[list[Any]], split: str, limit: int
    ) -> tuple[dict[str, list[list[int]]], int]:
        """The tokens of a batch, and the number of truncated samples."""
        for name, column in zip(self.options.text_columns, texts, strict=True):
            wrong = [value for value in column if not isinstance(value, str)]
            if wrong:
                raise TrainError(f"{split} has {wrong[0]!r} in column {name}, which is not a text")
        columns = dict(self.tokenizer(*texts))
        long = [i for i, ids in enumerate(columns["input_ids"]) if len(ids) > limit]
        if long:
            again = [[column[i] for i in long] for column in texts]
            shorter = self.tokenizer(*again, truncation=True, max_length=limit)
            for name, column in columns.items():
                for i, values in zip(long, shorter[name], strict=True):
                    column[i] = values
        return columns, len(long)

    def model_settings(self, train_set: Samples) -> dict[str, Any]:
        # the classes' names come from the data, not from the pretrained model
        if self.options.regression:
            return {**_named(["LABEL_0"]), "problem_type": "regression"}
        names = [f"LABEL_{number}" for number in range(train_set.about["classes"])]
        found = train_set.about["names"]
        names[: len(found)] = found
        return {**_named(names), "problem_type": "single_label_classification"}

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.pad(samples, self.tokenizer.padding_side)
        return Batch(inputs, {"labels": self._labels(samples)})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self._losses(outputs.logits, targets["labels"]).sum()

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each sample its class or number, and its loss."""
        logits = outputs.logits.float()
        found = logits.squeeze(-1) if self.options.regression else logits.argmax(dim=-1)
        losses = self._losses(logits, self._labels(samples))
        return list(zip(found.tolist(), losses.tolist(), strict=True))

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """The recipe's metrics, and the mean loss."""
        values, losses = zip(*predictions, strict=True)
        labels = [sample["label"][0] for sample in samples]
        classes = None if self.options.regression else samples.about["classes"]
        found = measure(self.options.metrics or default_metrics(classes), values, labels)
        return {**found, "loss": math.fsum(losses) / len(losses)}

    def _labels(self, samples: Sequence[Sample]) -> torch.Tensor:
        kind = torch.float32 if self.options.regression else torch.int64
        return torch.tensor([sample["label"][0] for sample in samples], dtype=kind)

    def _losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Of each sample, in fp32."""
        if self.options.regression:
            return mse_loss(logits.float().squeeze(-1), labels, reduction="none")
        smoothing = self.recipe.training.label_smoothing_factor
        return cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)


def _named(names: Sequence[str]) -> dict[str, Any]:
    numbers = dict(enumerate(names))
    return {"id2label": numbers, "label2id": {name: number for number, name in numbers.items()}}
