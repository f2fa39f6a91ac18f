"""What a task implements for the preparation of data and for the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_common.recipe import Recipe
from ftcluster_train.data.token_store import Sample, Samples, token_kind
from ftcluster_train.errors import TrainError

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

    `encode` runs once per host and writes raw data as token samples; the training loop of each rank
    reads them and calls the other methods.

    Attributes:
        model_class: transformers' AutoModelFor... class.
        splits: `train` and the sets that are evaluated.
        large_vocabulary: whether the loss is over the whole vocabulary.
    """

    model_class: Any
    large_vocabulary = False
    splits: tuple[str, ...] = ("train", "validation")

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
        self.recipe = recipe
        self.tokenizer = tokenizer

    @abstractmethod
    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        """Write the samples of each split into `folder`/SPLIT.

        Args:
            longest: tokens that the model takes at most, or None.

        Returns:
            Notices for the user, one line each: what was truncated or left out.

        Raises:
            TrainError: the data are not as the task needs them.
        """

    def model_settings(self, train_set: Samples) -> dict[str, Any]:  # noqa: ARG002
        """Fields of the model's configuration that depend on the data."""
        return {}

    def check_model(self, model: PreTrainedModel) -> None:  # noqa: B027 - optional
        """Make sure that a loaded model can be trained for this task.

        Raises:
            TrainError: it cannot.
        """

    def use_fused_loss(self, model: PreTrainedModel) -> torch.Tensor | None:  # noqa: ARG002
        """Make `loss` compute from hidden states instead of logits, if it can.

        Returns:
            The weight of the layer that has to return its input in training, or None.
        """
        return None

    @abstractmethod
    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Samples as tensors of shape (len(samples), tokens of the longest one)."""

    @abstractmethod
    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum of the samples' losses, a scalar in fp32."""

    @abstractmethod
    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each sample what `score` needs of the model's outputs, as plain data for JSON."""

    @abstractmethod
    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """The metrics of a set, from its predictions in the order of its samples."""

    def limit_length(self, wanted: int, field: str, longest: int | None) -> tuple[int, list[str]]:
        """The recipe's length of a sample, or the model's limit with a notice."""
        if longest is None or wanted <= longest:
            return wanted, []
        return longest, [f"{field} is {longest} instead of {wanted}, the model's limit"]

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
