"""Embeddings of texts: those of a query and the text that belongs to it are alike."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.nn import functional
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_common.columns import SearchColumns, embedded_column, search_columns, search_texts
from ftcluster_common.data_files import TRAIN, DataError
from ftcluster_common.job import PREDICT
from ftcluster_common.recipe import Recipe, SentenceSimilarity
from ftcluster_common.sentence_modules import SentenceModules, module_files, read_modules
from ftcluster_train.comm.rows import count_rows, gather_rows
from ftcluster_train.comm.traffic import Traffic
from ftcluster_train.engine.data.sources import (
    BATCH_ROWS,
    Rows,
    columns_of,
    find_columns,
    read_rows,
)
from ftcluster_train.engine.data.token_store import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.metrics.retrieval import DEPTH, retrieval_metrics
from ftcluster_train.engine.tasks.base import Batch, Forward, Task
from ftcluster_train.engine.tasks.in_batch_negatives import NEGATIVE, QUERY, Texts, ranking_loss
from ftcluster_train.engine.tasks.length_groups import length_groups
from ftcluster_train.engine.tasks.model_limits import longest_input
from ftcluster_train.errors import TrainError

SCORED = 1024  # queries that are compared with all texts at once
DIGITS = 8  # of a number of an embedding that is predicted, behind the point


class SentenceSimilarityTask(Task):
    """Contrastive training; the negatives are those of the batch of all ranks.

    A sample of the training set is a row, with the tokens of its texts one after the other. Of the
    other sets each sample is one text.
    """

    model_class = AutoModel
    has_head = False
    # a batch has random rows: rows of one length are often about the same text, so not negatives
    group_by_length = False

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *others: Any) -> None:
        super().__init__(recipe, tokenizer, *others)
        assert isinstance(recipe.options, SentenceSimilarity)
        self.options = recipe.options
        self.modules = SentenceModules("mean", normalize=True)
        self._width = 0
        self.check_padding()

    def encode(self, data: str, longest: int | None, folder: Path) -> list[str]:
        limit, notices = self.limit_length(self.options.max_length, "max_length", longest)
        sets = self.sets(data)
        first = next(iter(sets.values()))
        sets, drawn = self.with_validation(
            sets, lambda: [0 for _ in first], self.options.validation_split_percentage
        )
        self.keep_rows(sets, folder)
        for split, rows in sets.items():
            encode = self._encode_rows if split == TRAIN else self._encode_texts
            cut = encode(rows, split, limit, folder / split)
            if cut:
                notices.append(f"{split}: {cut} texts were truncated to {limit} tokens")
        return [*notices, *drawn]

    def _encode_rows(self, rows: Rows, split: str, limit: int, folder: Path) -> int:
        """Write one sample for each row; returns the number of truncated texts."""
        kind = token_kind(len(self.tokenizer))
        writer = SampleWriter(folder, {"input_ids": kind, "lengths": "i", "texts": "q"})
        found, cut = _rows_of(rows, self.options, split), 0
        while batch := list(islice(found, BATCH_ROWS)):
            tokens, too_long = self.tokenize([[text for row in batch for text in row]], limit)
            ids = iter(tokens["input_ids"])
            cut += too_long
            for row in batch:
                of_texts = [next(ids) for _ in row]
                writer.add(
                    {
                        "input_ids": list(chain.from_iterable(of_texts)),
                        "lengths": list(map(len, of_texts)),
                        "texts": list(map(_number_of, row)),
                    }
                )
        query, positive, negatives, _ = _columns_of(rows, self.options, split)
        read = {"query_column": query, "positive_column": positive, "negative_columns": negatives}
        return _close(writer, split, cut, columns=read)

    def _encode_texts(self, rows: Rows, split: str, limit: int, folder: Path) -> int:
        """Write one sample for each text to search, or for each row to predict; as above."""
        writer = SampleWriter(folder, {"input_ids": token_kind(len(self.tokenizer))})
        about: dict[str, Any] = {}
        if self.purpose == PREDICT:
            texts = _texts_of(rows, self.options, split)
        else:
            search = Search.of(_rows_of(rows, self.options, split))
            texts, about = iter(search.texts), search.about
        cut = 0
        while batch := list(islice(texts, BATCH_ROWS)):
            tokens, too_long = self.tokenize([batch], limit)
            cut += too_long
            for ids in tokens["input_ids"]:
                writer.add({"input_ids": ids})
        return _close(writer, split, cut, **about)

    def check_model(self, model: PreTrainedModel) -> None:
        if model.config.is_encoder_decoder:
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which has a decoder "
                "beside its encoder",
                "use an encoder, such as microsoft/mpnet-base",
            )
        try:
            folder = Path(model.name_or_path)
            found = (read_modules(folder) if folder.is_absolute() else None) or self.modules
        except DataError as error:
            if self.options.pooling == "auto" or self.options.normalize == "auto":
                raise TrainError(
                    str(error), "train another way: pooling=mean normalize=true"
                ) from None
            found = self.modules
        pooling, normalize = self.options.pooling, self.options.normalize
        self.modules = replace(
            found,
            pooling=found.pooling if pooling == "auto" else pooling,
            normalize=found.normalize if normalize == "auto" else normalize,
        )
        self._width = model.config.hidden_size
        # no embedding depends on it, and the exchange of gradients would wait for its own
        pooler = getattr(model, "pooler", None)
        if isinstance(pooler, torch.nn.Module):
            pooler.requires_grad_(False)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.pad(samples)
        return Batch(inputs, {"tokens": inputs["attention_mask"]})

    def losses(
        self, parts: Sequence[Sequence[Sample]], forward: Forward, traffic: Traffic
    ) -> Iterator[tuple[torch.Tensor, bool]]:
        """As in Task; the loss of a part is a share of that of all ranks' rows.

        Several parts are computed twice, at first for the embeddings only: the gradient of each
        depends on all others (Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under
        Memory Limited Setup).
        """
        texts, own, counts = self._all_texts([row for part in parts for row in part], traffic)

        def loss_of(embeddings: torch.Tensor) -> torch.Tensor:
            gathered = gather_rows(embeddings, counts, traffic)
            return ranking_loss(gathered, texts, own, self.options.scale, self.options.symmetric)

        if len(parts) < 2:
            found = [self._embed(part, forward) for part in parts]
            nothing = torch.empty(0, self._width, requires_grad=True)  # the others need its answer
            yield loss_of(found[0] if found else nothing), True
            return
        random = torch.get_rng_state()
        found = [self._embed(part, forward).detach() for part in parts]
        embeddings = torch.cat(found).requires_grad_()
        loss = loss_of(embeddings)
        loss.backward()
        gradients = embeddings.grad.split(list(map(len, found)))
        torch.set_rng_state(random)  # the same dropout again
        value = loss.detach()
        for number, (part, gradient) in enumerate(zip(parts, gradients, strict=True), start=1):
            product = (self._embed(part, forward) * gradient).sum()
            yield product - product.detach() + value, number == len(parts)
            value = torch.zeros(())

    def _all_texts(
        self, rows: Sequence[Sample], traffic: Traffic
    ) -> tuple[Texts, slice, list[int]]:
        """The texts of all ranks' rows, which rows are this rank's, and texts by rank."""
        pairs = [
            (text, min(place, NEGATIVE)) for row in rows for place, text in enumerate(row["texts"])
        ]
        counts = count_rows(len(pairs), traffic)
        own = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
        numbers, kinds = gather_rows(own, counts, traffic).T
        rank = dist.get_rank()
        before = int((kinds[: sum(counts[:rank])] == QUERY).sum())
        return Texts(numbers, kinds), slice(before, before + len(rows)), counts

    def _embed(self, rows: Sequence[Sample], forward: Forward) -> torch.Tensor:
        """The embeddings of rows' texts, of length 1, shape (texts, width).

        Texts of about the same length are computed together.
        """
        texts = [ids for row in rows for ids in _texts_in(row)]
        groups = length_groups(list(map(len, texts)))
        found = []
        for group in groups:
            outputs, targets = forward([{"input_ids": texts[i]} for i in group])
            found.append(self._pool(outputs, targets["tokens"]))
        places = torch.tensor(list(chain.from_iterable(groups))).argsort()
        return functional.normalize(torch.cat(found), dim=-1)[places]

    def _pool(self, outputs: Any, tokens: torch.Tensor) -> torch.Tensor:
        """One vector for each text, in fp32.

        Args:
            tokens: shape (texts, length), 0 for padding.
        """
        hidden = outputs.last_hidden_state.float()
        if self.modules.pooling == "cls":
            return hidden[:, 0]
        weights = tokens.float()
        return torch.bmm(weights.unsqueeze(1), hidden).squeeze(1) / weights.sum(1, keepdim=True)

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """The embedding of each text, as base64 of its fp32 numbers."""
        tokens = self.collate(samples).targets["tokens"]
        found = self._pool(outputs, tokens)
        if self.modules.normalize:
            found = functional.normalize(found, dim=-1)
        return [base64.b64encode(one.numpy().tobytes()).decode("ascii") for one in found]

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """How well the queries find their texts among all texts of the set, by the cosine."""
        embeddings = functional.normalize(_decoded(predictions), dim=-1)
        about = samples.about
        documents = torch.tensor(about["documents"])
        found: list[list[int]] = []
        for queries in torch.tensor(about["queries"]).split(SCORED):
            scores = embeddings[queries] @ embeddings[documents].T
            best = documents[scores.topk(min(DEPTH + 1, len(documents))).indices]
            # a query may be one of the texts itself
            found += [
                [text for text in texts if text != query]
                for query, texts in zip(queries.tolist(), best.tolist(), strict=True)
            ]
        return retrieval_metrics(found, about["relevant"])

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """The embedding of each row's text, as a list of numbers."""
        return [
            {"prediction": [round(number, DIGITS) for number in numbers]}
            for numbers in _decoded(predictions).tolist()
        ]

    def write_files(self, model: PreTrainedModel, folder: Path) -> None:
        """What sentence-transformers needs to load the model."""
        length = longest_input(model.config, self.tokenizer) or self.options.max_length
        documents = module_files(
            self.modules,
            self._width,
            min(length, self.options.max_length),
            {"transformers": transformers.__version__, "pytorch": torch.__version__},
        )
        for name, document in documents.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Search:
    """What a validation set has: texts, and which of them belong to which queries.

    Attributes:
        texts: each once.
        belonging: by the number of a query, those of its texts.
        documents: the numbers of all texts that may be found.
    """

    texts: list[str]
    belonging: Mapping[int, Sequence[int]]
    documents: Sequence[int]

    @classmethod
    def of(cls, rows: Iterable[Sequence[str]]) -> "Search":
        """Of the texts of rows, each with a query and the text that belongs to it first."""
        numbers: dict[str, int] = {}
        belonging: dict[int, dict[int, None]] = {}
        documents: dict[int, None] = {}
        for row in rows:
            query, positive, *negatives = (numbers.setdefault(t, len(numbers)) for t in row)
            belonging.setdefault(query, {})[positive] = None
            documents |= dict.fromkeys([positive, *negatives])
        return cls(
            list(numbers), {q: list(found) for q, found in belonging.items()}, list(documents)
        )

    @property
    def about(self) -> dict[str, Any]:
        """For the samples' folder."""
        return {
            "queries": list(self.belonging),
            "relevant": list(self.belonging.values()),
            "documents": self.documents,
        }


def _rows_of(rows: Rows, options: SentenceSimilarity, split: str) -> Iterator[list[str]]:
    """The texts of each row."""
    columns = _columns_of(rows, options, split)
    return read_rows(rows, split, lambda row: search_texts(row, columns))


def _columns_of(rows: Rows, options: SentenceSimilarity, split: str) -> SearchColumns:
    return find_columns(rows, split, lambda found: search_columns(options, found))


def _texts_of(rows: Rows, options: SentenceSimilarity, split: str) -> Iterator[str]:
    """The text of each row to predict."""
    column = embedded_column(options, columns_of(rows))
    for number, row in enumerate(rows, start=1):
        text = row.get(column)
        if not isinstance(text, str):
            raise TrainError(f"row {number} of {split} has {text!r} in column {column}, not a text")
        yield text


def _texts_in(row: Sample) -> Iterator[list[int]]:
    """The tokens of each text of a row."""
    ends = accumulate(row["lengths"], initial=0)
    return (row["input_ids"][begin:end] for begin, end in pairwise(ends))


def _number_of(text: str) -> int:
    """63 bits, the same for equal texts on all hosts."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _close(writer: SampleWriter, split: str, cut: int, **about: Any) -> int:
    if not len(writer):
        raise TrainError(f"the data have no samples in {split}")
    writer.close(**about)
    return cut


def _decoded(predictions: Sequence[str]) -> torch.Tensor:
    """The embeddings of all texts, shape (texts, width)."""
    whole = bytearray(b"".join(map(base64.b64decode, predictions)))
    return torch.frombuffer(whole, dtype=torch.float32).view(len(predictions), -1)
