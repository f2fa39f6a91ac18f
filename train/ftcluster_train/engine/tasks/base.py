"""What a task implements for the preparation of data and for the training loop."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_common.data_files import TRAIN, VALIDATION
from ftcluster_common.job import PREDICT, Purpose
from ftcluster_common.kernel_limits import EVAL_TOKENS, LOGITS
from ftcluster_common.recipe import Recipe
from ftcluster_train.engine.data.sets import PREDICTED, SEED, Part, choose_sets, draw_rows
from ftcluster_train.engine.data.sources import Rows, check_rows, load_rows
from ftcluster_train.engine.data.token_store import Sample, Samples, token_kind
from ftcluster_train.errors import TrainError
from ftcluster_train.patching.kernel_mode import KernelMode, find_head

ROWS_FILE = "rows.jsonl"  # beside the samples: the rows to predict
COMPARED_TOKENS = 64
TOKENIZER_COLUMNS = ("input_ids", "token_type_ids")  # which the model gets


class Batch(NamedTuple):
    """Samples as tensors.

    Attributes:
        inputs: the model's arguments.
        targets: for the loss.
    """

    inputs: dict[str, Any]
    targets: dict[str, torch.Tensor]


class Task(ABC):
    """One task.

    `encode` runs once per host and writes raw data as token samples, which each rank reads. The
    other methods make batches of them, losses and metrics.

    Args:
        purpose: what it is for.
        trained: the configuration of the model that is evaluated or predicts.

    Attributes:
        model_class: transformers' AutoModelFor... class.
        validation_splits: the sets that are evaluated.
        large_vocabulary: whether the loss is over the whole vocabulary.
        has_head: whether a model needs weights of its own for the task.
        group_by_length: whether batches may have samples of similar length.
        options: the recipe's fields of this task.
        head: the weight of the last layer, where in training that returns its input.
        evaluation_head: the same, in evaluations.
        pads: whether samples of a batch are padded to one length.
        needs_reference: whether the loss compares the model with what it was before the first step.
        disables_dropout: whether the model is trained without dropout.
        columns: fields of the recipe with the columns that were found by their names in the data
            that the model is trained on.
    """

    model_class: Any
    options: Any
    large_vocabulary = False
    has_head = True
    group_by_length = True
    needs_reference = False
    disables_dropout = False
    pads = True
    validation_splits: tuple[str, ...] = (VALIDATION,)

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerBase,
        purpose: Purpose = "train",
        trained: PretrainedConfig | None = None,
    ) -> None:
        self.recipe, self.options = recipe, recipe.options
        self.tokenizer = tokenizer
        self.purpose = purpose
        self.trained = trained
        self.columns: Mapping[str, Any] = {}
        self.smoothing = recipe.training.label_smoothing_factor
        self.head: torch.Tensor | None = None
        self.evaluation_head: torch.Tensor | None = None
        self._evaluated: PreTrainedModel | None = None  # which `evaluation_head` is of
        if self.pads:
            self.check_padding()

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        """Write the samples of each set into `folder`/SET; of a set to predict also its rows.

        Args:
            longest: tokens that the model takes at most, or None.

        Returns:
            Notices for the user, one line each: what was truncated or left out.

        Raises:
            TrainError: the data are not as the task needs them.
        """
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        sets, drawn = self.with_validation(self.sets(data))
        self.keep_rows(sets, folder)
        for split, rows in sets.items():
            notices += self.encode_split(rows, split, limit, folder / split)
        return [*notices, *drawn]

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        """Write the samples of a set, of `limit` tokens at most; returns notices.

        Raises:
            TrainError: the data are not as the task needs them.
        """
        raise NotImplementedError  # of tasks with an `encode` of their own

    def truncated(self, split: str, count: int, limit: int, what: str = "samples") -> list[str]:
        """A notice of what was cut, if something was."""
        return [f"{split}: {count} {what} were truncated to {limit} tokens"] if count else []

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002
        """Fields of the model's configuration that depend on the data."""
        return {}

    def check_model(self, model: PreTrainedModel) -> None:  # noqa: B027 - optional
        """Make sure that a loaded model can be trained for this task.

        Raises:
            TrainError: it cannot.
        """

    def use_fused_loss(self, model: PreTrainedModel) -> torch.Tensor | None:
        """Make `loss` compute from hidden states instead of logits, if it can.

        Returns:
            The weight of the layer that has to return its input in training, or None.
        """
        if self.large_vocabulary and not self.smoothing:
            self.head = find_head(model)
        return self.head

    def set_reference(  # noqa: B027 - optional
        self, samples: Samples, predictions: Sequence[Any]
    ) -> None:
        """Keep what `loss` needs of the model as it is before the first step.

        Only called where `needs_reference` is set, for all sets that the model is trained or
        evaluated on.

        Args:
            predictions: what `predictions` gives for each sample.
        """

    def weights(self, samples: Samples) -> list[int] | None:  # noqa: ARG002
        """How much each sample counts in a step's loss, which is a mean; None: all the same."""
        return None

    def evaluation_kernels(self, model: PreTrainedModel) -> KernelMode:
        """The context of forward passes without gradients, for `predictions`."""
        if self.large_vocabulary and self._evaluated is not model:
            self._evaluated, self.evaluation_head = model, find_head(model)
        return KernelMode(head=self.evaluation_head)

    def evaluation_tokens(self, model: PreTrainedModel) -> int:
        """The most that a rank evaluates at once; fewer where all have logits at the same time."""
        if not self.large_vocabulary or self.evaluation_head is not None:
            return EVAL_TOKENS
        return min(EVAL_TOKENS, LOGITS // int(model.get_input_embeddings().num_embeddings))

    def inputs_to_compare(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Arguments with which a saved model is compared with the one in memory.

        Plain ones, and not many where each token has logits of the whole vocabulary.
        """
        if not self.large_vocabulary:
            return self.collate(samples).inputs
        length = min(samples[0].get("documents", [COMPARED_TOKENS])[0], COMPARED_TOKENS)
        return {"input_ids": torch.tensor([samples[0]["input_ids"][:length]]), "use_cache": False}

    def saved_problems(self, folder: Path) -> list[str]:  # noqa: ARG002
        """What is wrong with the files of `write_files` in a saved model."""
        return []

    @abstractmethod
    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Samples as tensors of shape (len(samples), tokens of the longest one)."""

    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum of the samples' losses, a scalar in fp32."""
        raise NotImplementedError  # where the loss of a sample depends on all others

    def write_files(self, model: PreTrainedModel, folder: Path) -> None:  # noqa: B027 - optional
        """Write what other programs need besides model and tokenizer into a saved model."""

    @abstractmethod
    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each sample what `score` needs of the model's outputs, as plain data for JSON."""

    @abstractmethod
    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """The metrics of a set, from its predictions in the order of its samples."""

    def answers(self, predictions: Sequence[Any], samples: Samples) -> list[dict[str, Any]]:
        """What is predicted for each row of a set, from the predictions of its samples."""
        raise NotImplementedError  # of tasks that predict nothing of a row

    def sets(self, data: str) -> dict[str, Rows]:
        """The rows of each set that the task reads.

        Raises:
            TrainError: they cannot be loaded, or the data do not have them.
        """
        found = load_rows(data, self.recipe.data_config)
        sets = choose_sets(found, self.purpose, self.validation_splits, data)
        for split, rows in sets.items():
            check_rows(rows, split, self.recipe.options, self.purpose != PREDICT)
        return sets

    def with_validation(self, sets: dict[str, Rows]) -> tuple[dict[str, Rows], list[str]]:
        """Sets for a training, with one for validation where there is none, and a notice of it."""
        if self.purpose != "train" or len(sets) > 1:
            return sets, []
        seed, percent = self.recipe.training.data_seed, self.options.validation_split_percentage
        rows = sets[TRAIN]
        drawn, what = self.draw_validation(rows, percent, SEED if seed is None else seed)
        notice = f"validation: {what}, {percent:g} % of train"
        return {TRAIN: Part(rows, drawn, False), VALIDATION: Part(rows, drawn, True)}, [notice]

    def draw_validation(self, rows: Rows, percent: float, seed: int) -> tuple[frozenset[int], str]:
        """The numbers of the training set's rows for validation, and how many, for a notice."""
        drawn = draw_rows([0 for _ in rows], percent, seed)
        return drawn, f"{len(drawn)} rows"

    def keep_rows(self, sets: Mapping[str, Rows], folder: Path) -> None:
        """Write the rows to predict, for `answers` to be added."""
        if PREDICTED in sets:
            with (folder / ROWS_FILE).open("w", encoding="utf-8") as file:
                for row in sets[PREDICTED]:
                    file.write(json.dumps(row, default=str, ensure_ascii=False) + "\n")

    def limit_length(self, wanted: int, field: str, longest: int | None) -> tuple[int, list[str]]:
        """The recipe's length of a sample, or the model's limit with a notice."""
        if longest is None or wanted <= longest:
            return wanted, []
        return longest, [f"{field} is {longest} instead of {wanted}, the model's limit"]

    def tokenize(
        self, texts: Sequence[list[str]], limit: int
    ) -> tuple[dict[str, list[list[int]]], int]:
        """The tokens of texts or pairs of them, and how many were truncated.

        Args:
            texts: one or two lists.
            limit: tokens of a text or a pair, with special ones.
        """
        columns = dict(self.tokenizer(*texts))
        long = [i for i, ids in enumerate(columns["input_ids"]) if len(ids) > limit]
        if long:
            again = [[column[i] for i in long] for column in texts]
            shorter = self.tokenizer(*again, truncation=True, max_length=limit)
            for name, column in columns.items():
                for i, values in zip(long, shorter[name], strict=True):
                    column[i] = values
        return columns, len(long)

    def token_kinds(self) -> dict[str, str]:
        """The tokenizer's columns that the model gets, and the array type of each."""
        kind = token_kind(len(self.tokenizer))
        return {
            name: kind for name in TOKENIZER_COLUMNS if name in self.tokenizer.model_input_names
        }

    def check_padding(self) -> None:
        """Make sure that samples can be padded, if need be with the end-of-text token.

        Raises:
            TrainError: the tokenizer has neither token.
        """
        tokenizer = self.tokenizer
        if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
            raise TrainError(
                f"the tokenizer of {self.recipe.tokenizer or self.recipe.model} has neither a "
                "padding token nor an end-of-text token",
                "use one that has: tokenizer=DIR",
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token

    def pad(self, samples: Sequence[Sample], side: str = "right") -> dict[str, torch.Tensor]:
        """The tokenizer's columns, padded to the longest sample, and attention_mask."""
        fill = {
            "input_ids": self.tokenizer.pad_token_id,
            "token_type_ids": self.tokenizer.pad_token_type_id,
        }
        columns = {
            name: [s[name] for s in samples] for name in TOKENIZER_COLUMNS if name in samples[0]
        }
        masks = [[1] * len(ids) for ids in columns["input_ids"]]
        padded = {name: _rectangle(rows, fill[name], side) for name, rows in columns.items()}
        return {**padded, "attention_mask": _rectangle(masks, 0, side)}


def _rectangle(rows: Sequence[Sequence[int]], fill: int, side: str) -> torch.Tensor:
    longest = max(map(len, rows))
    padding = ([fill] * (longest - len(row)) for row in rows)
    return torch.tensor(
        [
            [*pad, *row] if side == "left" else [*row, *pad]
            for row, pad in zip(rows, padding, strict=True)
        ]
    )
