"""Pairs of a prompt and an answer to another prompt, for KTO's estimate of the KL divergence.

Each prompt is paired with the answer of the previous row, as in TRL. If that row has the same
prompt, the answer comes from the last earlier row with another prompt. The pairs therefore depend
only on the order of the rows, not on batches or ranks.

Standard library only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class JudgedAnswer:
    """The tokens of a prompt and its answer.

    Attributes:
        tokens: token ids of prompt and answer.
        targets: indices of the answer's target tokens; the answer begins at the first target.
        is_good: True if users liked the answer.
    """

    tokens: Sequence[int]
    targets: Sequence[int]
    is_good: bool

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens before the answer."""
        return self.tokens[: self.targets[0]]

    def with_answer_of(self, other: "JudgedAnswer") -> tuple[list[int], list[int]]:
        """Return the tokens of this prompt and the other answer, and their target indices."""
        begin, begin_other = self.targets[0], other.targets[0]
        tokens = [*self.tokens[:begin], *other.tokens[begin_other:]]
        return tokens, [begin + target - begin_other for target in other.targets]


def with_partners(rows: Iterable[JudgedAnswer]) -> Iterator[tuple[JudgedAnswer, JudgedAnswer]]:
    """Yield each row, together with the row whose answer is paired with its prompt.

    If the data begin with several rows that share a prompt, these rows are yielded last: no row
    with another prompt precedes them, so they are paired with a row at the end of the data. If all
    rows have the same prompt, each row is paired with the previous row.
    """
    first: list[JudgedAnswer] = []  # the first rows, which all have the same prompt
    previous: JudgedAnswer | None = None
    partner: JudgedAnswer | None = None  # the last row whose prompt differs from the previous row's
    for row in rows:
        if previous is not None and row.prompt != previous.prompt:
            partner = previous
        previous = row
        if partner is None:
            first.append(row)
        else:
            yield row, partner
    if not first or previous is None:
        return
    if partner is None:
        yield from zip(first, [first[-1], *first[:-1]], strict=True)
        return
    if previous.prompt != first[0].prompt:
        partner = previous
    for row in first:
        yield row, partner
