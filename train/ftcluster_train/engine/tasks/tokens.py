"""Conversion of texts to tokens and of tokens to tensors, for every task with a tokenizer."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from ftcluster_common.recipe import Recipe
from ftcluster_train.engine.data.token_samples import Sample, token_kind
from ftcluster_train.errors import TrainError

TOKENIZER_COLUMNS = ("input_ids", "token_type_ids")  # tokenizer columns that models read


class TextReader:
    """A tokenizer that counts empty texts, and special tokens in texts.

    Attributes:
        empty: number of texts or pairs that consist of special tokens only.
        special: number of texts that contain a special token, for each special token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.empty = 0
        self.special: Counter[str] = Counter()

    def tokenize(
        self, texts: Sequence[list[str]], limit: int
    ) -> tuple[dict[str, list[list[int]]], int]:
        """Tokenize texts or pairs of texts.

        Args:
            texts: a list of texts or, for pairs, two lists of the same length.
            limit: maximum number of tokens of a text or pair, including special tokens.

        Returns:
            The columns of the tokenizer, and the number of truncated texts or pairs.
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
        """Return the array type code of each tokenizer column that the model reads."""
        kind = token_kind(len(self.tokenizer))
        return {
            name: kind for name in TOKENIZER_COLUMNS if name in self.tokenizer.model_input_names
        }

    def pad(self, samples: Sequence[Sample], side: str = "right") -> dict[str, torch.Tensor]:
        """Return the tokenizer's columns and attention_mask as tensors, padded to equal length."""
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
        """Count the texts that contain special tokens of the tokenizer."""
        tokens = {*self.tokenizer.all_special_tokens} - {self.tokenizer.unk_token}
        self.special.update(token for text in texts for token in tokens if token in text)

    def notices(self) -> list[str]:
        """Return notices for the user about empty texts and special tokens."""
        notices = [
            f"{count} texts contain {token}, which the tokenizer reads as its special token"
            for token, count in self.special.items()
        ]
        if self.empty:
            notices.append(f"{self.empty} texts are empty: the model reads only special tokens")
        return notices


def check_padding(tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> None:
    """If a tokenizer has no padding token, use its end-of-text token for padding.

    Raises:
        TrainError: the tokenizer has neither a padding token nor an end-of-text token.
    """
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
        raise TrainError(
            f"the tokenizer of {recipe.tokenizer or recipe.model} has neither a "
            "padding token nor an end-of-text token",
            "use a tokenizer that has one: tokenizer=DIR",
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def rectangle(rows: Sequence[Sequence[int]], fill: int, side: str) -> torch.Tensor:
    """Return rows of different lengths as a tensor, padded on one side.

    Args:
        fill: value of the padding.
        side: left or right.
    """
    longest = max(map(len, rows))
    padding = ([fill] * (longest - len(row)) for row in rows)
    return torch.tensor(
        [
            [*pad, *row] if side == "left" else [*row, *pad]
            for row, pad in zip(rows, padding, strict=True)
        ]
    )
