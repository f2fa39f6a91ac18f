"""A row of packed sequences is split into groups of similar length, and joined again."""

from itertools import accumulate
from typing import Any

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ftcluster_kernels.documents import (
    SIMILAR,
    DocumentLayout,
    join_documents,
    layout_of,
    split_row,
)
from tests.engine.drawn import DTYPES

lengths = st.lists(st.integers(1, 12) | st.sampled_from([1, 9, 10, 40]), min_size=1, max_size=9)
togethers = st.sampled_from([1, 2, 10, 1024])
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32)

# for each group, its documents as positions in the row
Groups = list[list[torch.Tensor]]


def documents_of(layout: DocumentLayout) -> Groups:
    """Return the sequences of a `layout`, without its padding."""
    groups = []
    for group in layout.groups:
        tokens = group.tokens.view(group.count, -1)
        padding = group.padding
        real = torch.ones_like(tokens).bool() if padding is None else ~padding[..., 0, 0]
        groups.append([own[kept] for own, kept in zip(tokens, real, strict=True)])
    return groups


@given(lengths, togethers)
@example([3], 1024)
@example([1, 1, 1], 1024)
@example([5, 4, 5], 1024)
def test_groups(lengths: list[int], together: int) -> None:
    """Each document is in one group, complete and in order, with others of similar length."""
    layout = layout_of(tuple(lengths), together)
    ends = list(accumulate(lengths))
    starts = [end - length for end, length in zip(ends, lengths, strict=True)]
    found = []
    for group, documents in zip(layout.groups, documents_of(layout), strict=True):
        ranges = [(int(places[0]), int(places[-1]) + 1) for places in documents]
        found += ranges
        sizes = [end - start for start, end in ranges]
        longest = max(sizes)
        for places, (start, end) in zip(documents, ranges, strict=True):
            assert places.tolist() == [*range(start, end)]
        assert min(sizes) >= SIMILAR * longest
        assert group.count == 1 or longest <= together
        padded = [min(start + i, end - 1) for start, end in ranges for i in range(longest)]
        assert group.tokens.tolist() == padded
        if group.padding is not None:
            assert group.padding.shape == (group.count, longest, 1, 1)
        assert (group.padding is None) == (min(sizes) == longest)
    assert sorted(found) == list(zip(starts, ends, strict=True))


@given(lengths, togethers)
def test_places(lengths: list[int], together: int) -> None:
    """Each token of the row has one position in the groups that is not padding."""
    layout = layout_of(tuple(lengths), together)
    tokens = torch.cat([group.tokens for group in layout.groups])
    real = torch.cat(
        [
            torch.ones(len(group.tokens)) if group.padding is None else ~group.padding.flatten()
            for group in layout.groups
        ]
    ).bool()
    assert tokens[layout.places].tolist() == [*range(sum(lengths))]
    assert sorted(layout.places.tolist()) == real.nonzero().flatten().tolist()


def test_long_documents_are_alone() -> None:
    layout = layout_of((100, 65, 64, 64, 100, 3), 64)
    assert [group.count for group in layout.groups] == [1, 1, 1, 2, 1]


def split_by_slices(row: torch.Tensor, groups: Groups, per_key: int) -> list[torch.Tensor]:
    """Return the documents of a row one by one, each of shape (heads / per_key, its rows, size)."""
    return [
        row[0, :, int(places[0]) : int(places[-1]) + 1]
        .unflatten(0, (-1, per_key))
        .transpose(1, 2)
        .flatten(1, 2)
        for documents in groups
        for places in documents
    ]


def without_padding(
    groups: tuple[torch.Tensor, ...], documents: Groups, per_key: int
) -> list[torch.Tensor]:
    """Return the reference for `split_row`."""
    return [
        group[:, number, : len(places) * per_key]
        for group, own in zip(groups, documents, strict=True)
        for number, places in enumerate(own)
    ]


class Case:
    """A row with random values, whose tokens may be its outer dimension in memory."""

    def __init__(self, data: Any, lengths: list[int], together: int) -> None:
        self.per_key, keys = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
        self.dtype, self._generator = data.draw(dtypes), torch.Generator()
        self._generator.manual_seed(data.draw(seeds))
        self.layout = layout_of(tuple(lengths), together)
        self.documents = documents_of(self.layout)
        shape = (1, keys * self.per_key, sum(lengths), data.draw(st.integers(1, 4)))
        self.row = self.values(shape)
        if data.draw(st.booleans()):
            self.row = self.row.transpose(1, 2).contiguous().transpose(1, 2)
        self.row.requires_grad_()

    def values(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self.dtype)

    def groups(self) -> tuple[torch.Tensor, ...]:
        """Draw values in the shapes of the groups, including padding."""
        _, heads, _, size = self.row.shape
        return tuple(
            self.values((heads // self.per_key, g.count, len(g.tokens) // g.count * self.per_key,
                         size)).requires_grad_()
            for g in self.layout.groups
        )  # fmt: skip


@given(lengths, togethers, st.data())
def test_split_row(lengths: list[int], together: int, data: Any) -> None:
    """Documents and their gradients equal slices; gradients of padding are ignored."""
    case = Case(data, lengths, together)
    upstream = case.groups()
    found = split_row(case.row, case.layout, case.per_key)
    assert [one.shape for one in found] == [one.shape for one in upstream]
    wanted = split_by_slices(case.row, case.documents, case.per_key)
    own = without_padding(found, case.documents, case.per_key)
    assert all(map(torch.equal, own, wanted))

    (gradient,) = torch.autograd.grad(found, case.row, upstream)
    up = without_padding(upstream, case.documents, case.per_key)
    (exact,) = torch.autograd.grad(wanted, case.row, up)
    assert torch.equal(gradient, exact)


@given(lengths, togethers, st.data())
def test_padding_is_the_last_token(lengths: list[int], together: int, data: Any) -> None:
    case = Case(data, lengths, together)
    for group, documents in zip(
        split_row(case.row, case.layout, case.per_key), case.documents, strict=True
    ):
        for number, places in enumerate(documents):
            tokens = group[:, number].unflatten(1, (-1, case.per_key))
            padding = tokens[:, len(places) :]
            assert torch.equal(padding, tokens[:, len(places) - 1, None].expand(padding.shape))


@given(lengths, togethers, st.data())
def test_join_documents(lengths: list[int], together: int, data: Any) -> None:
    """Joining undoes `split_row` with any padding; gradients are copied, and padding has none."""
    case = Case(data, lengths, together)
    split = split_row(case.row, case.layout, case.per_key)
    assert torch.equal(join_documents(split, case.layout, case.per_key), case.row)

    groups, upstream = case.groups(), case.values(tuple(case.row.shape))
    found = join_documents(groups, case.layout, case.per_key)
    assert found.shape == case.row.shape
    wanted = without_padding(groups, case.documents, case.per_key)
    assert all(map(torch.equal, split_by_slices(found, case.documents, case.per_key), wanted))
    again = split_row(found, case.layout, case.per_key)
    assert all(map(torch.equal, without_padding(again, case.documents, case.per_key), wanted))

    gradients = torch.autograd.grad(found, groups, upstream)
    up = split_by_slices(upstream, case.documents, case.per_key)
    assert all(map(torch.equal, gradients, torch.autograd.grad(wanted, groups, up)))


@given(lengths, togethers, st.data())
def test_gradient_through_both(lengths: list[int], together: int, data: Any) -> None:
    """The gradient is the upstream one."""
    case = Case(data, lengths, together)
    joined = join_documents(
        split_row(case.row, case.layout, case.per_key), case.layout, case.per_key
    )
    upstream = case.values(tuple(case.row.shape))
    (found,) = torch.autograd.grad(joined, case.row, upstream)
    assert torch.equal(found, upstream)
