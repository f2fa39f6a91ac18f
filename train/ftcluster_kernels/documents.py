"""Packed sequences: several documents in a row, whose tokens do not attend to other documents.

Documents of similar length are computed together, padded to the longest document of the group. If
documents of a few hundred tokens were computed one by one, causal attention would take 1.7 times as
long, mostly because of the overhead of the calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch

from ftcluster_kernels.derivatives import by_torch
from ftcluster_kernels.private_torch import has_memory, is_transformed

SIMILAR = 0.8  # minimum length of a document in a group, relative to the group's longest


class DocumentMask(torch.Tensor):  # type: ignore[misc]
    """A mask whose elements are lengths of documents; each token sees all tokens of its document.

    Attention recognizes such a mask by its class; views and copies of the mask have the same class.
    """


class CausalDocumentMask(DocumentMask):
    """A DocumentMask for causal attention: each token sees itself and earlier tokens."""


def document_mask(lengths: Sequence[int], causal: bool = True) -> torch.Tensor:
    """Return the mask of a row of packed sequences, for attention within each sequence.

    The mask has four dimensions, because transformers passes only such masks through unchanged. Its
    elements are integers, so that torch's own attention raises an error instead of misreading it.
    Args:
        lengths: lengths of the documents, in tokens; below 2^31.
    """
    mask = torch.tensor(lengths, dtype=torch.int32, device="cpu").view(1, 1, 1, -1)
    documents: torch.Tensor = mask.as_subclass(CausalDocumentMask if causal else DocumentMask)
    return documents


@dataclass(frozen=True)
class Group:
    """Documents that are computed together.

    Attributes:
        count: number of documents.
        tokens: indices of the documents' tokens in the row, shape (count * longest,); padding
            repeats the last token of its document.
        padding: True for each padding token, shape (count, longest, 1, 1); None if there is no
            padding.
    """

    count: int
    tokens: torch.Tensor
    padding: torch.Tensor | None


@dataclass(frozen=True)
class DocumentLayout:
    """The division of a row into groups.

    Attributes:
        groups: groups of documents, the longest documents first.
        places: index of each token of the row in the concatenated groups, shape (tokens,).
    """

    groups: list[Group]
    places: torch.Tensor


@lru_cache(maxsize=4)
def layout_of(lengths: tuple[int, ...], together: int) -> DocumentLayout:
    """Return the layout of a row; the cache serves all layers of a model.

    Args:
        lengths: lengths of the documents, in tokens.
        together: maximum length in tokens of documents that are grouped; each longer document has
            its own group.
    """
    groups, places, begin = [], _integers([0] * sum(lengths)), 0
    starts = list(accumulate(lengths, initial=0))
    for documents in similar(lengths, together):
        longest = lengths[documents[0]]
        sizes = _integers([lengths[i] for i in documents]).unsqueeze(1)
        within = _integers(range(longest))
        tokens = _integers([starts[i] for i in documents]).unsqueeze(1)
        tokens = (tokens + torch.minimum(within, sizes - 1)).flatten()
        real = (within < sizes).flatten()
        padding = None if real.all() else ~real.view(len(documents), -1, 1, 1)
        groups.append(Group(len(documents), tokens, padding))
        places[tokens[real]] = begin + real.nonzero().flatten()
        begin += len(tokens)
    return DocumentLayout(groups, places)


def similar(lengths: Sequence[int], together: int) -> list[list[int]]:
    """Return groups of documents with similar lengths, as indices; the longest documents first.

    >>> similar([90, 300, 100, 7, 95], 1024)
    [[1], [2, 4, 0], [3]]
    >>> similar([100, 100], 64)
    [[0], [1]]
    """
    groups: list[list[int]] = []
    for document in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[groups[-1][0]] if groups else 0
        if longest and lengths[document] >= SIMILAR * longest and longest <= together:
            groups[-1].append(document)
        else:
            groups.append([document])
    return groups


def _integers(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def split_row(
    row: torch.Tensor, layout: DocumentLayout, per_key: int = 1
) -> tuple[torch.Tensor, ...]:
    """Split a row into groups of documents.

    Args:
        row: shape (1, heads, tokens, size).
        per_key: number of query heads that share a key head.

    Returns:
        Tensors of shape (heads / per_key, documents, longest * per_key, size): the query heads that
        share keys are consecutive for each token. Padding comes last, so no token sees it in causal
        attention.
    """
    groups: tuple[torch.Tensor, ...] = _Split.apply(row, layout, per_key)
    return groups


def join_documents(
    groups: Sequence[torch.Tensor], layout: DocumentLayout, per_key: int = 1
) -> torch.Tensor:
    """Join the groups of `split_row` into a row; padding gets no gradient."""
    row: torch.Tensor = _Join.apply(layout, per_key, *groups)
    return row


class _Split(torch.autograd.Function):  # type: ignore[misc]
    kernel = ""

    @staticmethod
    def forward(
        ctx: Any, row: torch.Tensor, layout: DocumentLayout, per_key: int
    ) -> tuple[torch.Tensor, ...]:
        ctx.layout, ctx.per_key = layout, per_key
        return tuple(_group(row, group, per_key) for group in layout.groups)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        if is_transformed() or not all(map(has_memory, grads)):
            # the gradient of the row does not depend on the row's elements
            heads, _, _, size = grads[0].shape
            shape = (1, heads * ctx.per_key, len(ctx.layout.places), size)
            row = torch.zeros(shape, dtype=grads[0].dtype, device="cpu", requires_grad=True)
            (of_row,) = by_torch(
                lambda row: tuple(_group(row, group, ctx.per_key) for group in ctx.layout.groups),
                (row,),
                *grads,
            )
            return of_row, None, None
        return _row(grads, ctx.layout, ctx.per_key), None, None


class _Join(torch.autograd.Function):  # type: ignore[misc]
    kernel = ""

    @staticmethod
    def forward(
        ctx: Any, layout: DocumentLayout, per_key: int, *groups: torch.Tensor
    ) -> torch.Tensor:
        ctx.layout, ctx.per_key = layout, per_key
        return _row(groups, layout, per_key)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads = []
        if is_transformed() or not has_memory(grad):
            # the gradients of the groups do not depend on the groups' elements
            heads, size = grad.shape[1] // ctx.per_key, grad.shape[3]
            groups = [
                torch.zeros(
                    heads, group.count, len(group.tokens) // group.count * ctx.per_key, size,
                    dtype=grad.dtype, device="cpu", requires_grad=True,
                )
                for group in ctx.layout.groups
            ]  # fmt: skip
            of_groups = by_torch(
                lambda *groups: _row(groups, ctx.layout, ctx.per_key), groups, grad
            )
            return None, None, *of_groups
        for group in ctx.layout.groups:
            gradient = _group(grad, group, ctx.per_key)
            if group.padding is not None:
                gradient.unflatten(2, (-1, ctx.per_key)).masked_fill_(group.padding, 0)
            grads.append(gradient)
        return None, None, *grads


def _group(row: torch.Tensor, group: Group, per_key: int) -> torch.Tensor:
    by_token = row[0].unflatten(0, (-1, per_key)).transpose(1, 2)
    tokens = by_token.index_select(1, group.tokens)
    return tokens.view(len(tokens), group.count, -1, row.shape[-1])


def _row(groups: Sequence[torch.Tensor], layout: DocumentLayout, per_key: int) -> torch.Tensor:
    """Return the row, in a memory layout with all heads of a token next to each other."""
    flat = [x.flatten(1, 2).unflatten(1, (-1, per_key)) for x in groups]
    joined = torch.cat(flat, 1) if len(flat) > 1 else flat[0]
    row = joined.transpose(0, 1).index_select(0, layout.places)
    return row.flatten(1, 2).transpose(0, 1).unsqueeze(0)
