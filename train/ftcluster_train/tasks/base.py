"""What a kind of training has to say, for the preparation and for the loop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_common.recipe import Recipe
from ftcluster_train.data.token_store import Sample, Samples, token_kind
from ftcluster_train.errors import TrainError

FROM_TOKENIZER = ("input_ids", "token_type_ids")  # columns that the model reads as they are


class Batch(NamedTuple):
    """Some samples as tensors.

    Attributes:
        inputs: what the model is called with.
        targets: what its outputs are compared with.
    """

    inputs: dict[str, Any]
    targets: dict[str, torch.Tensor]


class Task(ABC):
    """One kind of training.

    On each host `encode` writes raw data as token samples; then each rank reads them, and the loop
    calls the other methods.

    Attributes:
        model_class: transformers' class that makes the model.
        splits: `train` and the sets that are evaluated.
        large_vocabulary: whether the loss is over all tokens that there are.
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
            data: as the recipe names them.
            longest: tokens that the model takes at most, if it has a limit.
            folder: is there, and empty.

        Returns:
            What a user should know of it, one line each: what was cut or left out.

        Raises:
            TrainError: the data are not what the task needs.
        """

    @abstractmethod
    def model_settings(self, train_set: Samples) -> dict[str, Any]:
        """Fields of the model's configuration that the data decide."""

    def check_model(self, model: PreTrainedModel) -> None:  # noqa: B027 - most have nothing to say
        """Make sure that a model that could be loaded can be trained for this task.

        Raises:
            TrainError: it cannot.
        """

    def use_fused_loss(self, model: PreTrainedModel) -> torch.Tensor | None:  # noqa: ARG002
        """Have `loss` do without logits, if it can.

        Returns:
            The weight of the layer that is to give back what it gets from now on, in training.
        """
        return None

    @abstractmethod
    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Samples as tensors of shape (len(samples), the longest one's tokens)."""

    @abstractmethod
    def loss(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum of the samples' losses, a scalar in fp32."""

    @abstractmethod
    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """For each sample what `score` needs of the model's outputs; what JSON can hold."""

    @abstractmethod
    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """The task's metrics from the predictions for all samples of a set, in its order."""

    def shortest(self, wanted: int, field: str, longest: int | None) -> tuple[int, list[str]]:
        """The recipe's length of a sample, or the model's limit, and what to say of it."""
        if longest is None or wanted <= longest:
            return wanted, []
        return longest, [f"{field} is {longest} instead of {wanted}: the model takes no more"]

    def token_kinds(self) -> dict[str, str]:
        """The columns that the model reads, and the array type that each is stored in."""
        kind = token_kind(len(self.tokenizer))
        return {name: kind for name in FROM_TOKENIZER if name in self.tokenizer.model_input_names}

    def check_padding(self) -> None:
        """Make sure that samples can be padded: a tokenizer without such a token pads with its eos.

        Raises:
            TrainError: it has neither.
        """
        tokenizer = self.tokenizer
        if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
            raise TrainError(
                f"the tokenizer of {self.recipe.tokenizer or self.recipe.model} has neither a "
                "padding token nor one for the end of a text",
                "give one that has: tokenizer=DIR",
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token

    def pad(self, samples: Sequence[Sample], side: str = "right") -> dict[str, torch.Tensor]:
        """What the tokenizer made of each sample, padded to the longest one, and attention_mask."""
        fill = {
            "input_ids": self.tokenizer.pad_token_id,
            "token_type_ids": self.tokenizer.pad_token_type_id,
        }
        columns = {
            name: [s[name] for s in samples] for name in FROM_TOKENIZER if name in samples[0]
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
