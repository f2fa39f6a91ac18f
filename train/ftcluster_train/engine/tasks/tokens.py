"""Texts as tokens and tokens as tensors, for every task that has a tokenizer."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from ftcluster_common.recipe import Recipe
from ftcluster_train.engine.data.token_samples import Sample, token_kind
from ftcluster_train.errors import TrainError

TOKENIZER_COLUMNS = ("input_ids", "token_type_ids")  # which the model gets


class TextReader:
    """A tokenizer that counts what it finds in the texts of a task.

    Attributes:
        empty: texts or pairs without a token of their own.
        special: the tokenizer's special tokens that texts hold, by the number of texts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.empty = 0
        self.special: Counter[str] = Counter()

    def tokenize(
        self, texts: Sequence[list[str]], limit: int
    ) -> tuple[dict[str, list[list[int]]], int]:
        """Return the tokens of texts or pairs of texts, and how many were truncated.

        Args:
            texts: one or two lists.
            limit: tokens of a text or a pair, with special ones.
        """
        columns = dict(self.tokenizer(*texts))
        for column in texts:
            self.count_special(column)
        special = self.tokenizer.num_special_tokens_to_add(pair=len(texts) > 1)
        self.empty += sum(len(ids) <= special for ids in columns["input_ids"])
        long = [i for i, ids in enumerate(columns["input_ids"]) if len(ids) > limit]
        if long:
            again = [[column[i] for i in long] for column in texts]
            shorter = self.tokenizer(*again, truncation=True, max_length=limit)
            for name, column in columns.items():
                for i, values in zip(long, shorter[name], strict=True):
                    column[i] = values
        return columns, len(long)

    def token_kinds(self) -> dict[str, str]:
        """Return the tokenizer's columns that the model reads, and the array type of each."""
        kind = token_kind(len(self.tokenizer))
        return {
            name: kind for name in TOKENIZER_COLUMNS if name in self.tokenizer.model_input_names
        }

    def pad(self, samples: Sequence[Sample], side: str = "right") -> dict[str, torch.Tensor]:
        """Return the tokenizer's columns, padded to the longest sample, and attention_mask."""
        fill = {
            "input_ids": self.tokenizer.pad_token_id,
            "token_type_ids": self.tokenizer.pad_token_type_id,
        }
        columns = {
            name: [s[name] for s in samples] for name in TOKENIZER_COLUMNS if name in samples[0]
        }
        masks = [[1] * len(ids) for ids in columns["input_ids"]]
        padded = {name: rectangle(rows, fill[name], side) for name, rows in columns.items()}
        return {**padded, "attention_mask": rectangle(masks, 0, side)}

    def count_special(self, texts: Iterable[str]) -> None:
        """Count the texts that hold special tokens of the tokenizer."""
        tokens = {*self.tokenizer.all_special_tokens} - {self.tokenizer.unk_token}
        self.special.update(token for text in texts for token in tokens if token in text)

    def notices(self) -> list[str]:
        """Return what a user should know about the tokens of the texts that were read."""
        notices = [
            f"{count} texts hold {token}, which the tokenizer takes for its special token"
            for token, count in self.special.items()
        ]
        if self.empty:
            notices.append(f"{self.empty} texts have no token of their own: the model sees nothing")
        return notices


def check_padding(tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> None:
    """Make sure that samples can be padded, if need be with the end-of-text token.

    Raises:
        TrainError: the tokenizer has neither token.
    """
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
        raise TrainError(
            f"the tokenizer of {recipe.tokenizer or recipe.model} has neither a "
            "padding token nor an end-of-text token",
            "use one that has: tokenizer=DIR",
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def rectangle(rows: Sequence[Sequence[int]], fill: int, side: str) -> torch.Tensor:
    """Return rows of unequal length as a tensor, filled on one side."""
    longest = max(map(len, rows))
    padding = ([fill] * (longest - len(row)) for row in rows)
    return torch.tensor(
        [
            [*pad, *row] if side == "left" else [*row, *pad]
            for row, pad in zip(rows, padding, strict=True)
        ]
    )
