"""Mining of hard negatives: texts of other rows that the untrained model ranks near a query."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ftcluster_common.tasks.embed import SentenceSimilarity
from ftcluster_train.comm.world import World, gather_over_ranks
from ftcluster_train.engine.data.token_samples import ENDS, LENGTHS, Sample, Samples
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.tasks.embed.embedded_texts import texts_in
from ftcluster_train.engine.tasks.embed.vectors import decoded
from ftcluster_train.engine.tasks.predictions import predict
from ftcluster_train.io.rank_status import report

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AT_ONCE = 256  # number of queries to multiply against all texts at once
TextPlace = tuple[int, int]  # index of a row, and index of a text in the row


def hard_negatives(
    queries: torch.Tensor,
    documents: torch.Tensor,
    belonging: Sequence[Sequence[int]],
    options: SentenceSimilarity,
    most_belonging: int,
) -> list[list[int]]:
    """Return each query's hard negatives: indices of similar documents that do not belong to it.

    The rules and their order are the same as in sentence-transformers' mine_hard_negatives with the
    strategy `top`. Margins are relative to the least similar document that belongs to the query.
    The relative margin is TopK-PercPos in NV-Retriever (de Souza et al. 2024).

    Args:
        queries: embeddings of length 1, shape (queries, width).
        documents: embeddings of length 1, shape (documents, width).
        belonging: indices of the documents that belong to each query, which are never negatives.
        most_belonging: maximum number of documents that belong to a query, over all ranks.
    """
    last = options.range_max or _last_rank(options, most_belonging)
    mined: list[list[int]] = []
    for begin in range(0, len(queries), AT_ONCE):
        similar = queries[begin : begin + AT_ONCE] @ documents.T
        best = similar.topk(min(last + most_belonging, len(documents)), dim=1)
        for own, scores, numbers in zip(similar, best.values, best.indices, strict=True):
            right = torch.tensor(belonging[len(mined)])
            positive = own[right].min()
            allowed = ~torch.isin(numbers, right)
            if options.absolute_margin is not None:
                allowed &= scores + options.absolute_margin <= positive
            if options.relative_margin is not None:
                allowed &= scores <= positive - positive.abs() * options.relative_margin
            if options.max_score is not None:
                allowed &= scores <= options.max_score
            if options.min_score is not None:
                allowed &= scores >= options.min_score
            negatives = numbers[allowed][:last][options.range_min :]
            mined.append(negatives[: options.hard_negatives].tolist())
    return mined


def _last_rank(options: SentenceSimilarity, most_belonging: int) -> int:
    """Return the default of range_max: the number of most similar candidates to consider."""
    limits = (options.absolute_margin, options.relative_margin, options.max_score)
    several = 10 if any(limit is not None for limit in limits) else 1
    return options.range_min + options.hard_negatives * several + most_belonging


class MinedRows(Samples):
    """The rows of a training set with mined negatives, which are texts of other rows.

    Args:
        mined: places of the mined negatives of each row.
    """

    def __init__(self, rows: Samples, mined: Sequence[Sequence[TextPlace]]) -> None:
        self._rows, self._mined = rows, mined
        self.about, self._count = rows.about, len(rows)

    def __getitem__(self, index: Any) -> Any:
        row = dict(self._rows[index])
        for text in (_text(self._rows[row], place) for row, place in self._mined[index]):
            # mined texts add no teacher tokens: the teacher embeds them as part of their own rows
            row = {name: [*values, *text.get(name, ())] for name, values in row.items()}
        return row

    def lengths(self, column: str) -> "array[int]":
        """Return the number of tokens of each row, including its negatives."""
        if column != "input_ids":
            raise NotImplementedError(column)
        lengths, begins = array(LENGTHS), array(ENDS)  # lengths of all texts; each row's first text
        for row in map(self._rows.__getitem__, range(self._count)):
            begins.append(len(lengths))
            lengths.extend(row["lengths"])
        begins.append(len(lengths))
        of_rows = (
            sum(lengths[begin:end]) + sum(lengths[begins[row] + place] for row, place in mined)
            for begin, end, mined in zip(begins, begins[1:], self._mined, strict=False)
        )
        return array(LENGTHS, of_rows)


def _text(row: Sample, place: int) -> Sample:
    """Return the text at index `place` of a row, as a row with a single text."""
    fields = {name: row[name][place : place + 1] for name in ("lengths", "texts")}
    if "skipped" in row:
        fields["skipped"] = row["skipped"][place : place + 1]
    return {**fields, "input_ids": list(texts_in(row))[place]}


@dataclass(frozen=True)
class _Texts:
    """Single texts of rows, as samples with one text."""

    rows: Samples
    places: Sequence[TextPlace]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Sample:
        row, place = self.places[index]
        return _text(self.rows[row], place)

    def lengths(self, _column: str) -> list[int]:
        return [len(self[number]["input_ids"]) for number in range(len(self))]


def with_hard_negatives(
    task: Task, model: "PreTrainedModel", rows: Samples, world: World, bf16: bool,
    log: ProgressLog,
) -> Samples:  # fmt: skip
    """Return the rows of a training set with mined negatives; all ranks get the same rows.

    Candidates are all texts of the set that are not queries.
    """
    report(0, "evaluating")
    wanted, most_given = task.options.hard_negatives, 0
    queries: dict[int, TextPlace] = {}  # first place of each query, by the hash of its text
    documents: dict[int, TextPlace] = {}
    belonging: dict[int, dict[int, None]] = {}
    for number in range(len(rows)):
        query, positive, *negatives = rows[number]["texts"]
        most_given = max(most_given, len(negatives))
        queries.setdefault(query, (number, 0))
        belonging.setdefault(query, {})[positive] = None
        for place, text in enumerate((positive, *negatives), start=1):
            documents.setdefault(text, (number, place))
    log.write("phase", doing=f"mining {wanted} negatives for each of {len(queries)} queries")
    both: Any = _Texts(rows, [*queries.values(), *documents.values()])
    embeddings = functional.normalize(decoded(predict(task, model, both, world, bf16)), dim=-1)
    # a row may already contain some of the mined negatives, so mine more
    options = replace(task.options, hard_negatives=wanted + most_given)
    found = _mined(embeddings, list(queries), list(documents), belonging, options, world)
    texts, places = list(documents), list(documents.values())
    count = sum(min(wanted, len(texts)) for texts in found.values())
    few = sum(len(texts) < wanted for texts in found.values())
    log.notice(
        f"hard negatives: {count} were mined for {len(queries)} queries; {few} queries have fewer "
        f"than {wanted}, because too few other texts are within the limits (margins and scores)"
    )
    mined = []
    for number in range(len(rows)):
        query, *own = rows[number]["texts"]
        mined.append([places[n] for n in found[query] if texts[n] not in own][:wanted])
    return MinedRows(rows, mined)


def _mined(
    embeddings: torch.Tensor, queries: Sequence[int], documents: Sequence[int],
    belonging: Mapping[int, Mapping[int, None]], options: SentenceSimilarity, world: World,
) -> dict[int, list[int]]:  # fmt: skip
    """Return the indices of each query's negatives; the ranks divide the queries among them."""
    number = {text: n for n, text in enumerate(documents)}
    own = slice(world.rank, len(queries), world.size)
    right = [[number[text] for text in belonging[query]] for query in queries[own]]
    most = max(map(len, belonging.values()))
    of_texts = embeddings[len(queries) :]
    found = hard_negatives(embeddings[: len(queries)][own], of_texts, right, options, most)
    of_ranks = gather_over_ranks(list(zip(queries[own], found, strict=True)))
    return {query: mined for of_rank in of_ranks for query, mined in of_rank}
