"""Distillation: a classifier is trained on the outputs of another classifier, its teacher."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from ftcluster_common.data.class_names import as_word
from ftcluster_common.protocol.class_report import ClassReport, report_of_classes
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.classify import TextClassification
from ftcluster_common.tasks.distill import TextDistillation, distilled_columns
from ftcluster_train.engine.data.download import hash_of_weights
from ftcluster_train.engine.data.sources import (
    BATCH_ROWS,
    Rows,
    class_names,
    find_columns,
    read_rows,
)
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter
from ftcluster_train.engine.models import (
    call_model,
    load_config,
    load_model,
    load_tokenizer,
    longest_input,
)
from ftcluster_train.engine.tasks.base import Batch, Data, Document, Task
from ftcluster_train.engine.tasks.class_numbers import numbered
from ftcluster_train.engine.tasks.classify.labels import ClassLabels, labels_of_model
from ftcluster_train.engine.tasks.classify.metrics import f1_scores
from ftcluster_train.engine.tasks.registry import register
from ftcluster_train.engine.tasks.tokens import TOKENIZER_COLUMNS
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import KernelMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNLABELLED = -1
# problem types of classifiers that compute no probability distribution over the classes
OTHERS = ("multi_label_classification", "regression")
PROBES = ("The dog bit the man.", "It wasn't so: \u00fcber 3.5 % of 1,000 are naive!")


@register
class TextDistillationTask(Task):
    """Trains a classifier, the student, on the outputs of a teacher.

    The loss is alpha * T^2 * KL(teacher || student) + (1 - alpha) * cross entropy, where KL uses
    logits divided by the temperature T. The teacher's logits are computed once, before the first
    step. Rows without a label have no cross entropy term.

    Attributes:
        names: class names of the teacher, which are also the student's classes.
    """

    name = "text-distillation"
    model_class = AutoModelForSequenceClassification
    options: TextDistillation
    needs_reference = True

    def __init__(self, recipe: Recipe, *others: Any) -> None:
        super().__init__(recipe, *others)
        self.names: list[str] = []
        self._logits: dict[int, Sequence[float]] = {}  # the teacher's logits, by sample id
        self._written = 0  # number of samples written so far
        mine = self.options
        options = TextClassification(
            mine.text_columns, mine.label_column, max_length=mine.max_length
        )
        self.used_as = replace(
            recipe, name="classify", task="text-classification", options=options, teacher=None
        )
        self._by_number = False  # True if labels are class numbers of the teacher
        # the tokenizer that has more columns (DistilBERT's has no token types)
        self._widest_tokenizer = self.tokenizer
        self._longest: int | None = None  # maximum number of tokens of the teacher's input

    # the teacher

    def sample_settings(self) -> dict[str, Any]:
        return {"classes": self.names}

    def inspect_teacher(self, folder: Path) -> None:
        """Read the class names of the teacher.

        Raises:
            TrainError: the teacher is not a single-label classifier, or needs another tokenizer.
        """
        name, tokenizer = self.recipe.teacher, load_tokenizer(str(folder))
        config = load_config(self._of_teacher(folder), str(folder), tokenizer)
        kind = getattr(config, "problem_type", None)
        if config.num_labels < 2 or kind in OTHERS:
            raise TrainError(
                f"the teacher {name} has {config.num_labels} outputs"
                + (f" (problem type {kind})" if kind else "")
                + ", but distillation needs the probabilities of classes",
                "use a classifier, such as the model of a classify run",
            )
        student, teacher = (
            [each.get_vocab(), each(*PROBES)["input_ids"]] for each in (self.tokenizer, tokenizer)
        )
        if student != teacher:
            raise TrainError(
                f"the teacher {name} has another tokenizer than {self.recipe.model}, but both must "
                "read the same tokens",
                "use a student with the same tokenizer, such as distilbert-base-uncased for BERT",
            )
        self._widest_tokenizer = max(
            self.tokenizer, tokenizer, key=lambda part: len(_columns_of(part))
        )
        self._longest = longest_input(config, tokenizer)
        self.names = [str(config.id2label[number]) for number in range(config.num_labels)]

    def load_teacher(self, folder: Path) -> None:
        """Load the teacher, and set `reference_key` to a hash of its weights."""
        self.inspect_teacher(folder)
        recipe = self._of_teacher(folder)
        config = load_config(recipe, str(folder), self.tokenizer)
        self.reference_model = load_model(
            self.model_class, recipe, str(folder), config, require_trained_head=True
        )
        self.reference_key = f"{hash_of_weights(folder)}-"

    def _of_teacher(self, folder: Path) -> Recipe:
        return replace(self.recipe, model=str(folder), from_scratch=False, config_overrides={})

    def set_reference(self, samples: Samples, predictions: Sequence[Any]) -> None:
        for sample, logits in zip(samples, predictions, strict=True):
            self._logits[sample["number"][0]] = logits

    def predict(self, model: "PreTrainedModel", samples: Sequence[Sample], bf16: bool) -> list[Any]:
        if model is not self.reference_model:
            return super().predict(model, samples, bf16)
        with KernelMode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = call_model(model, self.reader.pad(samples, self.tokenizer.padding_side)).logits
        predictions: list[Any] = logits.float().tolist()
        return predictions

    # data

    def encode(self, data: Data, longest: int | None, folder: Path) -> list[str]:
        limits = [limit for limit in (longest, self._longest) if limit is not None]
        self.reader.tokenizer = self._widest_tokenizer
        try:
            return super().encode(data, min(limits, default=None), folder)
        finally:
            self.reader.tokenizer = self.tokenizer

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        texts, label = find_columns(
            rows, split, lambda names: distilled_columns(self.options, names)
        )
        labels = self._labels(rows, label) if label else None
        kinds = self.reader.token_kinds()
        writer = SampleWriter(folder, {**kinds, "label": "i", "number": "i"})
        cut = unlabelled = 0
        texts_and_labels = self._rows_of(rows, split, texts, label)
        while batch := list(islice(texts_and_labels, BATCH_ROWS)):
            columns = [list(column) for column in zip(*(row for row, _ in batch), strict=True)]
            tokens, too_long = self.reader.tokenize(columns, limit)
            cut += too_long
            for i, (_, word) in enumerate(batch):
                is_labelled = labels is not None and word
                number = labels.read(word, split) if labels and is_labelled else UNLABELLED
                if number >= len(self.names):
                    raise TrainError(
                        f"{split} has the class {number}, but the teacher {self.recipe.teacher} "
                        f"has {len(self.names)}: {', '.join(self.names)}"
                    )
                unlabelled += not is_labelled
                about = {"label": [number], "number": [self._written]}
                writer.add({**{name: tokens[name][i] for name in kinds}, **about})
                self._written += 1
        if not len(writer):
            raise TrainError(f"the data have no samples in {split}")
        read = {"text_columns": texts, **({"label_column": label} if label else {})}
        writer.close(columns=read, rows=len(writer), cut=cut)
        notices = self.truncated(split, cut, limit)
        if unlabelled:
            which = f"{unlabelled} of {len(writer)} rows have no label"
            notices.append(f"{split}: {which}, and are trained on the teacher's outputs alone")
        if self._by_number:
            classes = ", ".join(f"{n} is {name}" for n, name in enumerate(self.names[:8]))
            notices.append(f"{split}: labels are the numbers of the teacher's classes: {classes}")
        return notices

    def _rows_of(
        self, rows: Rows, split: str, texts: Sequence[str], label: str
    ) -> Iterator[tuple[list[str], str]]:
        """Yield the texts and the label of each row; a missing label is ""."""
        names = class_names(rows, label) if label else []

        def read(row: Mapping[str, Any]) -> tuple[list[str], str]:
            word = as_word(row.get(label)) if label else ""
            named = names[int(word)] if names and word.isdecimal() else word
            return [row[name] for name in texts], named

        return (pair for _, pair in read_rows(rows, split, read))

    def _labels(self, rows: Rows, label: str) -> ClassLabels:
        """Return the conversion of labels to the teacher's class numbers.

        Raises:
            TrainError: the labels do not match the teacher's classes.
        """
        words = {word for _, word in self._rows_of(rows, "", (), label) if word}
        numbers = {name: number for number, name in enumerate(self.names)}
        try:
            labels = labels_of_model(words, numbers, f"the teacher {self.recipe.teacher}")
        except TrainError as error:
            raise TrainError(
                f"column {label}: {error.message}",
                "use the teacher's class names, or remove the column to train without labels",
            ) from error
        self._by_number = bool(words) and not labels.numbers
        return labels

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:  # noqa: ARG002
        number = sample["label"][0]
        classes = [] if number == UNLABELLED else [self.names[number]]
        return [Document(sample["input_ids"], (), "".join(classes) or "(no label)", classes)]

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002
        return {**numbered(self.names), "problem_type": "single_label_classification"}

    # a batch

    def collate(self, samples: Sequence[Sample]) -> Batch:
        none = [0.0] * len(self.names)  # the comparison of saved models needs no teacher logits
        teacher = [self._logits.get(sample["number"][0], none) for sample in samples]
        labels = torch.tensor([sample["label"][0] for sample in samples])
        inputs = self.reader.pad(samples, self.tokenizer.padding_side)
        return Batch(inputs, {"labels": labels, "teacher": torch.tensor(teacher)})

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self._losses(outputs.logits.float(), targets, self.smoothing).sum()

    def _losses(
        self, logits: torch.Tensor, targets: Mapping[str, torch.Tensor], smoothing: float = 0.0
    ) -> torch.Tensor:
        """Return the loss of each sample in a batch."""
        alpha, temperature = self.options.alpha, self.options.temperature
        student, teacher = (log_softmax(x / temperature, -1) for x in (logits, targets["teacher"]))
        soft = kl_div(student, teacher, log_target=True, reduction="none").sum(-1)
        hard = cross_entropy(
            logits, targets["labels"], ignore_index=UNLABELLED, reduction="none",
            label_smoothing=smoothing,
        )  # fmt: skip
        return alpha * temperature**2 * soft + (1 - alpha) * hard

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """Return each sample's loss, predicted class, and class predicted by the teacher."""
        targets, logits = self.collate(samples).targets, outputs.logits.float()
        columns = (self._losses(logits, targets), logits.argmax(-1), targets["teacher"].argmax(-1))
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        losses, mine, teachers = zip(*predictions, strict=True)
        same = sum(student == teacher for student, teacher in zip(mine, teachers, strict=True))
        scores = {"agreement": same / len(mine), "loss": math.fsum(losses) / len(losses)}
        if report := self.class_report(predictions, samples):
            f1 = f1_scores(report)
            scores = {"accuracy": f1["f1_micro"], "f1_macro": f1["f1_macro"], **scores}
        return scores

    def class_report(self, predictions: Sequence[Any], samples: Samples) -> ClassReport | None:
        """Return the class report over the rows that have a label."""
        pairs = [
            (mine, sample["label"][0])
            for (_, mine, _), sample in zip(predictions, samples, strict=True)
            if sample["label"][0] != UNLABELLED
        ]
        if not pairs:
            return None
        mine, labels = zip(*pairs, strict=True)
        return report_of_classes(mine, labels, self.names)


def _columns_of(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    return [name for name in TOKENIZER_COLUMNS if name in tokenizer.model_input_names]
