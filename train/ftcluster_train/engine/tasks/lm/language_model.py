"""The base class of tasks that train on texts without labels."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ftcluster_common.data.data_files import TEST, TRAIN, VALIDATION
from ftcluster_common.data.data_sets import split_name
from ftcluster_common.protocol.job import EVALUATE
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.lm import LanguageModel
from ftcluster_train.engine.data.pieces import PIECE
from ftcluster_train.engine.data.sources import BATCH_ROWS, TextRows, Texts, load_texts
from ftcluster_train.engine.data.token_samples import Samples, move_tail
from ftcluster_train.engine.tasks.base import Data, Task
from ftcluster_train.errors import TrainError

T = TypeVar("T")


class LanguageModelTask(Task):
    """Trains on texts without labels, and measures the perplexity.

    If there is no validation set, the last training samples become the validation set.

    Attributes:
        length_field: name of the recipe field that sets the number of tokens of a sample.
    """

    options: LanguageModel
    large_vocabulary = True
    trains_head = False
    compares = False
    length_field = "max_length"

    def encode(self, data: Data, longest: int | None, folder: Path) -> list[str]:
        field = self.length_field
        length, notices = self.limit_length(getattr(self.options, field), field, longest)
        recipe = replace(self.recipe, data=data)
        for data_set, part in zip(recipe.data_sets, recipe.by_set(), strict=True):
            with self.using(data_set.name):
                notices += self._encode_set(part, data_set.name, length, folder)
        return notices

    def _encode_set(self, part: Recipe, name: str, length: int, folder: Path) -> list[str]:
        """Write the samples of one data set into `folder`, and return notices."""
        notices: list[str] = []
        texts = load_texts(part.source, part.data_config, self.options, self.recipe.has_test)
        if self.purpose == EVALUATE:
            texts = {VALIDATION: texts.get(VALIDATION, texts[TRAIN])}
        first = next(iter(texts.values()))
        if isinstance(first, TextRows):
            self.inspect_columns(first.rows)
        for split, of_split in texts.items():
            split = split_name(split, name)
            notices += self.encode_texts(of_split, split, length, folder / split)
        if VALIDATION not in texts:
            percent = self.options.validation_split_percentage
            notices.append(self._move_tail(VALIDATION, percent, name, length, folder))
        tests = self.recipe.test_split_percentage
        if self.purpose == "train" and tests is not None and TEST not in texts:
            notices.append(self._move_tail(TEST, tests, name, length, folder))
        return notices

    def _move_tail(self, split: str, percent: float, name: str, length: int, folder: Path) -> str:
        """Move the last samples of a training set to a new set, and return a notice."""
        train, new = split_name(TRAIN, name), split_name(split, name)
        count = len(Samples(folder / train))
        moved = max(1, round(count * percent / 100))
        if moved == count:
            raise TrainError(
                f"the texts{f' of {train}' * bool(name)} fill only one block of {length} tokens; "
                f"training and {split} need at least one block each",
                f"add text, or use smaller blocks: {self.length_field}=128",
            )
        move_tail(folder / train, folder / new, moved)
        return f"{new}: the last {moved} of {count} blocks"

    @abstractmethod
    def encode_texts(self, texts: Texts, split: str, length: int, folder: Path) -> list[str]:
        """Write the samples of a set, each with at most `length` tokens, and return notices.

        Raises:
            TrainError: the texts are too short to fill one sample.
        """

    def too_short(self, split: str, tokens: int, length: int) -> TrainError:
        """Return the error for texts that do not fill a block."""
        return TrainError(
            f"the texts of {split} have {tokens} tokens, fewer than one block of {length}",
            f"add text, or use smaller blocks: {self.length_field}=128",
        )


def batches(texts: Iterable[tuple[str, T]]) -> Iterator[list[tuple[str, T]]]:
    """Divide texts, each with further data, into batches limited in number and total length."""
    batch: list[tuple[str, T]] = []
    length = 0
    for text in texts:
        batch.append(text)
        length += len(text[0])
        if len(batch) == BATCH_ROWS or length >= 4 * PIECE:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
