"""Text classification data: rows from a folder or by name, tokenised, in batches a rank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ftcluster_train.errors import TrainError
from ftcluster_train.job import Recipe

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Samples:
    """Tokenised samples of one split.

    Attributes:
        encodings: for each sample what the tokenizer made: input_ids, token_type_ids, ...
        labels: for each sample its class.
    """

    encodings: list[dict[str, list[int]]]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.labels)


def load_splits(data: str, recipe: Recipe) -> dict[str, Any]:
    """The rows of both splits as `datasets.Dataset`s.

    Args:
        data: a folder with train.jsonl and validation.jsonl, or a name for `load_dataset`.
        recipe: names configuration and columns.

    Raises:
        TrainError: it cannot be loaded, or lacks a split or a column; says what was found.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        if Path(data).is_dir():
            files = {split: str(Path(data) / f"{split}.jsonl") for split in SPLITS}
            found = datasets.load_dataset("json", data_files=files)
        else:
            found = datasets.load_dataset(data, recipe.data_config)
    except Exception as error:  # load_dataset raises whatever its many sources raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TrainError(
            f"data '{data}' cannot be loaded: {reason}",
            "give a folder with train.jsonl and validation.jsonl: --data DIR",
        ) from error
    missing = [split for split in SPLITS if split not in found]
    if missing:
        raise TrainError(f"data '{data}' has no split {', '.join(missing)}; found {list(found)}")
    columns = found["train"].column_names
    absent = [name for name in (*recipe.text_columns, recipe.label_column) if name not in columns]
    if absent:
        raise TrainError(
            f"data '{data}' has no column {', '.join(absent)}; found {', '.join(columns)}",
            "name its columns: text_columns=[a,b] label_column=c",
        )
    return {split: found[split] for split in SPLITS}


def tokenise(rows: Any, recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Samples:
    """Tokenise one split, cut at the recipe's max_length."""
    texts = [list(rows[name]) for name in recipe.text_columns]
    encoded = tokenizer(*texts, truncation=True, max_length=recipe.max_length)
    count = len(texts[0])
    return Samples(
        encodings=[{key: encoded[key][i] for key in encoded} for i in range(count)],
        labels=[int(label) for label in rows[recipe.label_column]],
    )


def collate(
    samples: Samples, indices: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> dict[str, torch.Tensor]:
    """Samples as tensors of shape (len(indices), longest of them), and their labels."""
    batch = tokenizer.pad([samples.encodings[i] for i in indices], return_tensors="pt")
    labels = torch.tensor([samples.labels[i] for i in indices])
    return {**batch, "labels": labels}


def epoch_batches(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Indices of each batch of an epoch, all ranks together, the same on every rank.

    The last batch is smaller where `batch_size` does not divide `count`; no sample is left out and
    none comes twice.
    """
    generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
    order = torch.randperm(count, generator=generator).tolist()
    for begin in range(0, count, batch_size):
        yield order[begin : begin + batch_size]
