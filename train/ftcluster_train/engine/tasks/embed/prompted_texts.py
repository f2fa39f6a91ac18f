"""Texts with prompts, and search problems for validation. Standard library only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Prompts(NamedTuple):
    """The prompts that precede each query and each other text.

    Attributes:
        pooled: True if pooling includes the tokens of the prompts.
    """

    query: str = ""
    text: str = ""
    pooled: bool = True


class PromptedText(NamedTuple):
    """A text, and the prompt before the text.

    Attributes:
        is_query: True for a query, if the task encodes queries differently from other texts.
    """

    prompt: str
    text: str
    is_query: bool = False

    def __str__(self) -> str:
        return self.prompt + self.text


@dataclass(frozen=True)
class Search:
    """The search problem of a validation set: queries, and the texts that each query should find.

    Attributes:
        texts: distinct texts with prompts. A text that is both a query and a document occurs twice
            if its tokens differ between the two uses.
        belonging: indices in `texts` of the texts that belong to each query, keyed by the index of
            the query in `texts`.
        documents: indices in `texts` of all texts that a search may find.
    """

    texts: list[PromptedText]
    belonging: Mapping[int, Sequence[int]]
    documents: Sequence[int]

    @classmethod
    def of(cls, rows: Iterable[Sequence[PromptedText]]) -> "Search":
        """Return the search problem that the rows define.

        Args:
            rows: texts of each row: a query, the text that belongs to the query, and further texts.
        """
        numbers: dict[PromptedText, int] = {}
        belonging: dict[int, dict[int, None]] = {}
        documents: dict[int, None] = {}
        for row in rows:
            query, positive, *negatives = (numbers.setdefault(t, len(numbers)) for t in row)
            belonging.setdefault(query, {})[positive] = None
            documents |= dict.fromkeys([positive, *negatives])
        return cls(
            list(numbers), {q: list(texts) for q, texts in belonging.items()}, list(documents)
        )

    @property
    def about(self) -> dict[str, Any]:
        """Return the metadata for the samples.

        The field `same` contains, for each query, the document with the same text; -1 for none.
        """
        by_text = {self.texts[number].text: number for number in self.documents}
        return {
            "queries": list(self.belonging),
            "same": [by_text.get(self.texts[query].text, -1) for query in self.belonging],
            "relevant": list(self.belonging.values()),
            "documents": self.documents,
        }
