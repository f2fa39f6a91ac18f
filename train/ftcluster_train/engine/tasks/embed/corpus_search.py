"""The search of a validation set's queries in its documents, with bounded memory.

The ranks divide the documents among them. A rank compares the vectors of a few documents at a time
with all queries, keeps the best documents of each query, and drops the vectors. The search is
exact: it finds the same documents as a comparison of all vectors at once.
"""

import base64
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from ftcluster_common.protocol.kernel_limits import SEARCH_DEPTH, SEARCH_ELEMENTS
from ftcluster_train.comm.world import World, gather_over_ranks, sum_over_ranks
from ftcluster_train.engine.data.sampler import INDEX
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.tasks.embed.metrics import recall, retrieval_metrics
from ftcluster_train.engine.tasks.predictions import predictions_of_rank
from ftcluster_train.patching.batch_context import BatchContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_train.engine.tasks.embed.sentence_similarity import SentenceSimilarityTask

RECALLS = (10, 100)
MERGED = 1024  # number of queries whose results the ranks exchange at once
MOST_DOCUMENTS = 1024  # maximum number of documents that are compared at once
LOW_BITS = 0xFFFFFFFF
NOTHING = torch.iinfo(torch.int64).min  # key of a place without a document

# function from the predictions of queries to their scores with some documents, shape (queries,
# documents), keyed by the suffix of the names of the metrics
Comparison = Callable[[Sequence[Any]], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Retrieved:
    """The results of a search, the same on every rank.

    Attributes:
        documents: indices of the documents found for each query, best first, as int64 tensors of
            shape (queries, depth), by the suffix of the names of the metrics. -1 fills rows.
        query_elements: mean number of stored elements of the vectors of a query.
        document_elements: mean number of stored elements of the vectors of a document.
    """

    documents: Mapping[str, torch.Tensor]
    query_elements: float
    document_elements: float


class BestDocuments:
    """The best documents of each query so far.

    A key combines a score and the index of a document into an integer, so that documents with
    equal scores always have the same order: the document with the lowest index is the best one.
    """

    def __init__(self, queries: int, depth: int = SEARCH_DEPTH) -> None:
        self._keys = torch.full((queries, depth), NOTHING)

    def add(self, first: int, scores: torch.Tensor, documents: torch.Tensor) -> None:
        """Add documents to the results of some consecutive queries.

        Args:
            first: index of the first of these queries.
            scores: scores in fp32, shape (queries, documents).
            documents: index of each document, below 2^32.
        """
        bits = (scores.float() + 0.0).view(torch.int32)  # + 0.0 makes -0.0 equal to 0.0
        # floats are ordered like integers with the same bits if the bits of negative floats are
        # inverted, except the sign (IEEE 754)
        ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        self.add_keys(first, (ordered.long() << 32) | (LOW_BITS - documents))

    def add_keys(self, first: int, keys: torch.Tensor) -> None:
        """Add the keys of documents to the results of some consecutive queries."""
        rows = slice(first, first + len(keys))
        both = torch.cat([self._keys[rows], keys], dim=1)
        self._keys[rows] = both.topk(self._keys.shape[1], dim=1).values

    def merge_over_ranks(self, world: World) -> None:
        """Add the results of the other ranks; every rank must call this."""
        for first in range(0, len(self._keys), MERGED):
            rows = self._keys[first : first + MERGED]
            text = base64.b64encode(rows.numpy().tobytes()).decode("ascii")
            for rank, of_rank in enumerate(gather_over_ranks(text)):
                if rank != world.rank:
                    values = bytearray(base64.b64decode(of_rank))
                    keys = torch.frombuffer(values, dtype=torch.int64)
                    self.add_keys(first, keys.view(len(rows), -1))

    def documents(self) -> torch.Tensor:
        """Return the indices of each query's documents, best first; -1 where there are no more."""
        return torch.where(self._keys == NOTHING, -1, LOW_BITS - (self._keys & LOW_BITS))


def search(
    task: "SentenceSimilarityTask", model: "PreTrainedModel", samples: Samples, world: World,
    bf16: bool, context: BatchContext | None,
) -> Retrieved:  # fmt: skip
    """Return the documents that the queries of a set find; every rank must call this.

    Args:
        samples: samples with the metadata of `prompted_texts.Search.about`.
        context: batch context, see `predictions.predict`.
    """
    predicted = partial(predictions_of_rank, task, model, samples, world, bf16, context)
    queries: list[int] = samples.about["queries"]
    of_ranks = gather_over_ranks(list(predicted(queries)))
    vectors = {number: prediction for pairs in of_ranks for number, prediction in pairs}
    asked = [vectors[query] for query in queries]
    only_queries = {*samples.about["only_queries"]}
    both = [query for query in queries if query not in only_queries]
    others = array(INDEX, (n for n in range(len(samples)) if n not in vectors))
    documents = chain(
        ((number, vectors[number]) for number in both[world.rank :: world.size]), predicted(others)
    )
    best: dict[str, BestDocuments] = {}
    count = stored = 0
    for numbers, predictions in _chunks(documents, task.elements):
        count += len(numbers)
        stored += sum(map(task.elements, predictions))
        with torch.no_grad():
            scores_of = task.compare(predictions)
            for first in range(0, len(asked), task.compared_queries):
                block = asked[first : first + task.compared_queries]
                for suffix, scores in scores_of(block).items():
                    if suffix not in best:
                        best[suffix] = BestDocuments(len(asked))
                    best[suffix].add(first, scores, torch.tensor(numbers))
    # a rank without documents has no results
    for suffix in dict.fromkeys(name for names in gather_over_ranks([*best]) for name in names):
        best.setdefault(suffix, BestDocuments(len(asked))).merge_over_ranks(world)
    count, stored = map(int, sum_over_ranks([count, stored]))
    of_queries = sum(map(task.elements, asked)) / len(asked)
    return Retrieved(
        {name: of.documents() for name, of in best.items()}, of_queries, stored / count
    )


def _chunks(
    documents: Iterator[tuple[int, Any]], elements: Callable[[Any], int]
) -> Iterator[tuple[list[int], list[Any]]]:
    """Yield the numbers and the predictions of a few documents at a time."""
    numbers: list[int] = []
    predictions: list[Any] = []
    stored = 0
    for number, prediction in documents:
        numbers.append(number)
        predictions.append(prediction)
        stored += elements(prediction)
        if stored >= SEARCH_ELEMENTS or len(numbers) == MOST_DOCUMENTS:
            yield numbers, predictions
            numbers, predictions, stored = [], [], 0
    if numbers:
        yield numbers, predictions


def search_metrics(documents: torch.Tensor, about: Mapping[str, Any]) -> dict[str, float]:
    """Return the retrieval metrics of a search problem.

    Args:
        documents: indices of the documents found for each query, see `Retrieved`.
        about: metadata from `prompted_texts.Search.about`.
    """

    def found() -> Iterator[list[int]]:
        """Yield the documents of each query, without the query itself."""
        for same, row in zip(about["same"], documents, strict=True):
            yield [number for number in row.tolist() if number not in (same, -1)]

    relevant = about["relevant"]
    recalls = {f"recall_at_{depth}": recall(found(), relevant, depth) for depth in RECALLS}
    return {**retrieval_metrics(found(), relevant), **recalls}
