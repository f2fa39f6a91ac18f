"""What embeddings are learned from: rows of a query and texts, or of pairs with a score."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any

from ftcluster_common.data.columns import SearchColumns, score_of, search_texts
from ftcluster_common.data.data_files import TRAIN, short
from ftcluster_common.protocol.job import PREDICT
from ftcluster_common.tasks.embed import (
    SCORE_LOSSES,
    SentenceSimilarity,
    embedded_column,
    search_columns,
    with_loss,
)
from ftcluster_train.engine.data.sources import (
    BATCH_ROWS,
    Rows,
    columns_of,
    find_columns,
    read_rows,
)
from ftcluster_train.engine.data.token_samples import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.tasks.base import Document, Task
from ftcluster_train.engine.tasks.embed.prompted_texts import PromptedText, Prompts, Search
from ftcluster_train.errors import TrainError


class EmbeddedTexts(Task):
    """Writes texts as samples.

    A sample of the training set is a row, with the tokens of its texts one after the other. In the
    other sets each sample is one text. `skipped` has how many tokens at the beginning of a text are
    not pooled.
    """

    options: SentenceSimilarity
    prompts = Prompts()
    _prompted = 0  # texts that begin with their prompt

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tokens_of: dict[str, int] = {}  # of the prompts that are not pooled

    def sample_settings(self) -> dict[str, Any]:
        return {"prompts": self.prompts}

    def look_at_rows(self, rows: Rows) -> None:
        if self.purpose != PREDICT:
            self.options = with_loss(self.options, rows)

    def notices(self) -> list[str]:
        query, text, pooled = self.prompts
        used = {"query": query} if self.purpose == PREDICT else {"query": query, "text": text}
        written = [f"{prompt!r} before each {kind}" for kind, prompt in used.items() if prompt]
        apart = "" if pooled else ", whose tokens embeddings are not made of"
        found = [f"prompts: {', '.join(written)}{apart}"] if written else []
        if self._prompted:
            found.append(f"{self._prompted} texts begin with their prompt already, and get another")
        if self.options.loss != self.recipe.options.loss and self.options.loss in SCORE_LOSSES:  # type: ignore[attr-defined]
            [label] = self.uses["label"]
            found.append(
                f"column {label} has scores, so pairs are learned by them: loss={self.options.loss}"
            )
        return [*super().notices(), *found]

    def _with_prompts(self, rows: Iterable[list[str]]) -> Iterator[list[PromptedText]]:
        """Rows of a query and other texts, each behind its prompt."""
        query, text, _ = self.prompts
        for first, *others in rows:
            self._prompted += bool(query) and first.startswith(query)
            self._prompted += sum(bool(text) and other.startswith(text) for other in others)
            yield [PromptedText(query, first), *(PromptedText(text, other) for other in others)]

    def _kinds(self) -> dict[str, str]:
        skipped = {} if self.prompts.pooled else {"skipped": "i"}
        return {"input_ids": token_kind(len(self.tokenizer)), **skipped}

    def _skipped(self, texts: Iterable[PromptedText], limit: int) -> dict[str, list[int]]:
        """How many tokens of texts are not pooled, counted as sentence-transformers does."""
        if self.prompts.pooled:
            return {}
        for prompt in self.prompts[:2]:
            if prompt and prompt not in self._tokens_of:
                ids = self.tokenizer(prompt, truncation=True, max_length=limit)["input_ids"]
                special = ids[-1] in self.tokenizer.all_special_ids
                self._tokens_of[prompt] = len(ids) - special
        return {"skipped": [self._tokens_of.get(text.prompt, 0) for text in texts]}

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        encode = self._encode_rows if split == TRAIN else self._encode_texts
        return self.truncated(split, encode(rows, split, limit, folder), limit, "texts")

    def _encode_rows(self, rows: Rows, split: str, limit: int, folder: Path) -> int:
        """Write one sample for each row; returns the number of truncated texts."""
        columns = _columns_of(rows, self.options, split)
        labels = iter(_scores_of(rows, columns, split))
        kinds = {**self._kinds(), "lengths": "i", "texts": "q"}
        writer = SampleWriter(folder, {**kinds, "label": "d"} if columns.loss else kinds)
        rows_of_texts, cut = self._with_prompts(_rows_of(rows, columns, split)), 0
        while batch := list(islice(rows_of_texts, BATCH_ROWS)):
            tokens, too_long = self.reader.tokenize(
                [[str(text) for row in batch for text in row]], limit
            )
            ids = iter(tokens["input_ids"])
            cut += too_long
            for row in batch:
                of_texts = [next(ids) for _ in row]
                writer.add(
                    {
                        "input_ids": list(chain.from_iterable(of_texts)),
                        "lengths": list(map(len, of_texts)),
                        "texts": [_number_of(one.text) for one in row],
                        **({"label": [next(labels)]} if columns.loss else {}),
                        **self._skipped(row, limit),
                    }
                )
        query, positive, negatives, *_ = columns
        read = {"query_column": query, "positive_column": positive, "negative_columns": negatives}
        return close_set(writer, split, cut, columns=read, rows=len(writer))

    def _encode_texts(self, rows: Rows, split: str, limit: int, folder: Path) -> int:
        """Write one sample for each text to search, or for each row to predict; as above."""
        writer = SampleWriter(folder, self._kinds())
        about: dict[str, Any] = {}
        texts: Iterator[PromptedText]
        if self.purpose == PREDICT:
            alone = ([text] for text in texts_of(rows, self.options, split))
            texts = (text for [text] in self._with_prompts(alone))
        else:
            columns = _columns_of(rows, self.options, split)
            found = list(self._with_prompts(_rows_of(rows, columns, split)))
            search = Search.of(found)
            texts, about = iter(search.texts), search.about
            if columns.loss:
                numbers = {text: number for number, text in enumerate(search.texts)}
                about = {"pairs": [[numbers[text] for text in row] for row in found]}
                about["labels"] = list(_scores_of(rows, columns, split))
        cut = 0
        while batch := list(islice(texts, BATCH_ROWS)):
            tokens, too_long = self.reader.tokenize([list(map(str, batch))], limit)
            cut += too_long
            for text, ids in zip(batch, tokens["input_ids"], strict=True):
                writer.add({"input_ids": ids, **self._skipped([text], limit)})
        return close_set(writer, split, cut, **about)

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        if "lengths" not in sample:
            return super().documents(sample, samples)
        texts = list(texts_in(sample))
        labels = ("query", "positive", *["negative"] * len(texts))
        if "label" in sample:
            labels = ("text", f"score {sample['label'][0]:g}")
        return [Document(ids, label=label) for ids, label in zip(texts, labels, strict=False)]


def _rows_of(rows: Rows, columns: SearchColumns, split: str) -> Iterator[list[str]]:
    """The texts of each row."""
    return (texts for _, texts in read_rows(rows, split, lambda row: search_texts(row, columns)))


def _scores_of(rows: Rows, columns: SearchColumns, split: str) -> Iterator[float]:
    """The score of each row's pair."""
    return (score for _, score in read_rows(rows, split, lambda row: score_of(row, columns)))


def _columns_of(rows: Rows, options: SentenceSimilarity, split: str) -> SearchColumns:
    return find_columns(rows, split, lambda names: search_columns(options, names))


def texts_of(rows: Rows, options: SentenceSimilarity, split: str) -> Iterator[str]:
    """The text of each row to predict, or to learn from a teacher."""
    column = embedded_column(options, columns_of(rows))
    for number, row in enumerate(rows, start=1):
        text = row.get(column)
        if not isinstance(text, str):
            raise TrainError(
                f"row {number} of {split} has {short(text)} in column {column}, not a text"
            )
        yield text


def texts_in(row: Sample) -> Iterator[list[int]]:
    """The tokens of each text of a row."""
    ends = accumulate(row["lengths"], initial=0)
    return (row["input_ids"][begin:end] for begin, end in pairwise(ends))


def _number_of(text: str) -> int:
    """63 bits, the same for equal texts on all hosts."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def close_set(writer: SampleWriter, split: str, cut: int, **about: Any) -> int:
    """End the samples of a set; returns `cut`.

    Raises:
        TrainError: there are none.
    """
    if not len(writer):
        raise TrainError(f"the data have no samples in {split}")
    writer.close(**about, cut=cut)
    return cut
