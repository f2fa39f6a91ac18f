"""Embeddings of texts: those of a query and the text that belongs to it are alike."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.nn import functional
from transformers import AutoModel

from ftcluster_common.columns import SearchColumns, embedded_column, search_columns, search_texts
from ftcluster_common.data_files import TRAIN, DataError, short
from ftcluster_common.job import PREDICT
from ftcluster_common.recipe import SentenceSimilarity
from ftcluster_common.sentence_modules import (
    DOCUMENTS,
    QUERY,
    SentenceModules,
    module_files,
    read_modules,
)
from ftcluster_train.engine.data.sampler import length_groups
from ftcluster_train.engine.data.sources import (
    BATCH_ROWS,
    Rows,
    columns_of,
    find_columns,
    read_rows,
)
from ftcluster_train.engine.data.token_store import Sample, Samples, SampleWriter, token_kind
from ftcluster_train.engine.metrics import DEPTH, Search, retrieval_metrics
from ftcluster_train.engine.models import longest_input
from ftcluster_train.engine.tasks.base import Batch, Document, Task
from ftcluster_train.engine.tasks.in_batch_negatives import BatchTexts, ranking_loss
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCORED = 1024  # queries that are compared with all texts at once
DIGITS = 8  # of a number of an embedding that is predicted, behind the point


class SentenceSimilarityTask(Task):
    """Contrastive training; the negatives are those of the batch of all ranks.

    So a step computes all embeddings before the loss, see `engine.step.GradientCacheStep`. A sample
    of the training set is a row, with the tokens of its texts one after the other. In the other
    sets each sample is one text.

    Attributes:
        width: elements of an embedding.
        prompts: what is written before each query, and before each other text.
    """

    model_class = AutoModel
    has_head = False
    # a batch has random rows: rows of one length are often about the same text, so not negatives
    group_by_length = False

    options: SentenceSimilarity
    modules = SentenceModules("mean", normalize=True)
    width = 0
    _prompted = 0  # texts that begin with their prompt
    prompts = ("", "")

    def look_at_model(self, folder: Path) -> None:
        modules = self._modules_of(folder)
        query, text = modules.search_prompts
        if self.purpose == PREDICT:
            query = modules.prompt
        given = self.options.query_prompt, self.options.text_prompt
        self.prompts = (
            query if given[0] is None else given[0],
            text if given[1] is None else given[1],
        )
        if any(self.prompts) and not modules.pools_prompt:
            raise TrainError(
                f"{self.recipe.model} makes embeddings without the tokens of its prompt, which is "
                "not done here",
                'use it without one: query_prompt="" text_prompt=""',
            )

    def _modules_of(self, folder: Path) -> SentenceModules:
        """What follows the transformer of a folder, without the recipe's own settings."""
        try:
            return (read_modules(folder) if folder.is_absolute() else None) or self.modules
        except DataError as error:
            if self.options.pooling == "auto" or self.options.normalize == "auto":
                raise TrainError(
                    str(error), "train another way: pooling=mean normalize=true"
                ) from None
            return self.modules

    def notices(self) -> list[str]:
        query, text = self.prompts
        used = {"query": query} if self.purpose == PREDICT else {"query": query, "text": text}
        written = [f"{prompt!r} before each {kind}" for kind, prompt in used.items() if prompt]
        found = [f"prompts: {', '.join(written)}"] if written else []
        if self._prompted:
            found.append(f"{self._prompted} texts begin with their prompt already, and get another")
        return [*super().notices(), *found]

    def _with_prompts(self, rows: Iterable[list[str]]) -> Iterator[list[str]]:
        """Rows of a query and other texts, each behind its prompt."""
        query, text = self.prompts
        for first, *others in rows:
            self._prompted += bool(query) and first.startswith(query)
            self._prompted += sum(bool(text) and other.startswith(text) for other in others)
            yield [query + first, *(text + other for other in others)]

    def encode_split(self, rows: Rows, split: str, limit: int, folder: Path) -> list[str]:
        encode = self._encode_rows if split == TRAIN else self._encode_texts
        return self.truncated(split, encode(rows, split, limit, folder), limit, "texts")

    def _encode_rows(self, rows: Rows, split: str, limit: int, folder: Path) -> int:
        """Write one sample for each row; returns the number of truncated texts."""
        kind = token_kind(len(self.tokenizer))
        writer = SampleWriter(folder, {"input_ids": kind, "lengths": "i", "texts": "q"})
        rows_of_texts, cut = self._with_prompts(_rows_of(rows, self.options, split)), 0
        while batch := list(islice(rows_of_texts, BATCH_ROWS)):
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
        return _close(writer, split, cut, columns=read, rows=len(writer))

    def _encode_texts(self, rows: Rows, split: str, limit: int, folder: Path) -> int:
        """Write one sample for each text to search, or for each row to predict; as above."""
        writer = SampleWriter(folder, {"input_ids": token_kind(len(self.tokenizer))})
        about: dict[str, Any] = {}
        texts: Iterator[str]
        if self.purpose == PREDICT:
            alone = ([text] for text in _texts_of(rows, self.options, split))
            texts = (text for [text] in self._with_prompts(alone))
        else:
            search = Search.of(self._with_prompts(_rows_of(rows, self.options, split)))
            texts, about = iter(search.texts), search.about
        cut = 0
        while batch := list(islice(texts, BATCH_ROWS)):
            tokens, too_long = self.tokenize([batch], limit)
            cut += too_long
            for ids in tokens["input_ids"]:
                writer.add({"input_ids": ids})
        return _close(writer, split, cut, **about)

    def documents(self, sample: Sample, samples: Samples) -> list[Document]:
        if "lengths" not in sample:
            return super().documents(sample, samples)
        texts = list(_texts_in(sample))
        labels = ("query", "positive", *["negative"] * len(texts))
        return [Document(ids, label=label) for ids, label in zip(texts, labels, strict=False)]

    def check_model(self, model: "PreTrainedModel") -> None:
        if model.config.is_encoder_decoder:
            raise TrainError(
                f"{self.recipe.model} is a {model.config.model_type} model, which has a decoder "
                "beside its encoder",
                "use an encoder, such as microsoft/mpnet-base",
            )
        folder = Path(model.name_or_path)
        self.look_at_model(folder)
        modules = self._modules_of(folder)
        named = dict(zip((QUERY, DOCUMENTS[0]), self.prompts, strict=True))
        if self.options.query_prompt is not None or self.options.text_prompt is not None:
            modules = replace(modules, prompts=named, default_prompt=None)
        elif any(self.prompts):  # both by name, as the model is trained, whatever has no name
            modules = replace(modules, prompts={**modules.prompts, **named})
        pooling, normalize = self.options.pooling, self.options.normalize
        self.modules = replace(
            modules,
            pooling=modules.pooling if pooling == "auto" else pooling,
            normalize=modules.normalize if normalize == "auto" else normalize,
        )
        self.width = model.config.hidden_size
        # no embedding depends on it, and the exchange of gradients would wait for its own
        pooler = getattr(model, "pooler", None)
        if isinstance(pooler, torch.nn.Module):
            pooler.requires_grad_(False)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        inputs = self.pad(samples)
        return Batch(inputs, {"tokens": inputs["attention_mask"]})

    def group_texts(self, rows: Sequence[Sample]) -> tuple[list[list[Sample]], torch.Tensor]:
        """The texts of rows, of about the same length in each group.

        Returns:
            The groups, and the place of each text in all groups one after the other.
        """
        texts = [ids for row in rows for ids in _texts_in(row)]
        groups = length_groups(list(map(len, texts)))
        places = torch.tensor(list(chain.from_iterable(groups))).argsort()
        return [[{"input_ids": texts[i]} for i in group] for group in groups], places

    def batch_loss(self, embeddings: torch.Tensor, texts: BatchTexts) -> torch.Tensor:
        """The sum of this rank's rows' losses, from the embeddings of all ranks' texts."""
        options = self.options
        return ranking_loss(embeddings, texts, options.scale, options.symmetric)

    def pool(self, outputs: Any, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """One vector for each text, in fp32.

        Args:
            targets: `tokens` of shape (texts, length), 0 for padding.
        """
        tokens = targets["tokens"]
        hidden = outputs.last_hidden_state.float()
        if self.modules.pooling == "cls":
            return hidden[:, 0]
        weights = tokens.float()
        return torch.bmm(weights.unsqueeze(1), hidden).squeeze(1) / weights.sum(1, keepdim=True)

    def predictions(self, outputs: Any, samples: Sequence[Sample]) -> list[Any]:
        """The embedding of each text, as base64 of its fp32 numbers."""
        embeddings = self.pool(outputs, self.collate(samples).targets)
        if self.modules.normalize:
            embeddings = functional.normalize(embeddings, dim=-1)
        return [base64.b64encode(row.numpy().tobytes()).decode("ascii") for row in embeddings]

    def score(self, predictions: Sequence[Any], samples: Samples) -> dict[str, float]:
        """How well the queries find their texts among all texts of the set, by the cosine."""
        embeddings = functional.normalize(_decoded(predictions), dim=-1)
        about = samples.about
        documents = torch.tensor(about["documents"])
        retrieved: list[list[int]] = []
        for queries in torch.tensor(about["queries"]).split(SCORED):
            scores = embeddings[queries] @ embeddings[documents].T
            best = documents[scores.topk(min(DEPTH + 1, len(documents))).indices]
            # a query may be one of the texts itself
            retrieved += [
                [text for text in texts if text != query]
                for query, texts in zip(queries.tolist(), best.tolist(), strict=True)
            ]
        return retrieval_metrics(retrieved, about["relevant"])

    def answers(self, predictions: Sequence[Any], _samples: Samples) -> list[dict[str, Any]]:
        """The embedding of each row's text, as a list of numbers."""
        return [
            {"prediction": [round(number, DIGITS) for number in numbers]}
            for numbers in _decoded(predictions).tolist()
        ]

    def write_files(self, model: "PreTrainedModel", folder: Path) -> None:
        """What sentence-transformers needs to load the model."""
        length = longest_input(model.config, self.tokenizer) or self.options.max_length
        documents = module_files(
            self.modules,
            self.width,
            min(length, self.options.max_length),
            {"transformers": transformers.__version__, "pytorch": torch.__version__},
        )
        for name, document in documents.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def saved_problems(self, folder: Path) -> list[str]:
        saved = read_modules(folder)
        same = saved and (saved.pooling, saved.normalize) == (
            self.modules.pooling, self.modules.normalize
        )  # fmt: skip
        return [] if same else [f"its files say {saved}, it was trained with {self.modules}"]


def _rows_of(rows: Rows, options: SentenceSimilarity, split: str) -> Iterator[list[str]]:
    """The texts of each row."""
    columns = _columns_of(rows, options, split)
    return (texts for _, texts in read_rows(rows, split, lambda row: search_texts(row, columns)))


def _columns_of(rows: Rows, options: SentenceSimilarity, split: str) -> SearchColumns:
    return find_columns(rows, split, lambda names: search_columns(options, names))


def _texts_of(rows: Rows, options: SentenceSimilarity, split: str) -> Iterator[str]:
    """The text of each row to predict."""
    column = embedded_column(options, columns_of(rows))
    for number, row in enumerate(rows, start=1):
        text = row.get(column)
        if not isinstance(text, str):
            raise TrainError(
                f"row {number} of {split} has {short(text)} in column {column}, not a text"
            )
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
    writer.close(**about, cut=cut)
    return cut


def _decoded(predictions: Sequence[str]) -> torch.Tensor:
    """The embeddings of all texts, shape (texts, width)."""
    whole = bytearray(b"".join(map(base64.b64decode, predictions)))
    return torch.frombuffer(whole, dtype=torch.float32).view(len(predictions), -1)
