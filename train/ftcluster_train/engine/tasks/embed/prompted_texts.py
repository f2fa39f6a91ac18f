"""Texts with their prompts, and sets of texts to search. Standard library only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Prompts(NamedTuple):
    """The texts that are written before each query and before each other text.

    Attributes:
        pooled: True if pooling includes the tokens of the prompts.
    """

    query: str = ""
    text: str = ""
    pooled: bool = True


class PromptedText(NamedTuple):
    """A text, and the prompt that is written before it."""

    prompt: str
    text: str

    def __str__(self) -> str:
        return self.prompt + self.text


@dataclass(frozen=True)
class Search:
    """The search problem of a validation set: texts, and the queries that they belong to.

    Attributes:
        texts: distinct texts; a text that is both a query and a document occurs twice if the two
            prompts differ.
        belonging: indices of the texts that belong to each query, by the query's index.
        documents: indices of all texts that may be found.
    """

    texts: list[PromptedText]
    belonging: Mapping[int, Sequence[int]]
    documents: Sequence[int]

    @classmethod
    def of(cls, rows: Iterable[Sequence[PromptedText]]) -> "Search":
        """Read rows of texts, each with a query first, then the text that belongs to it."""
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
        """Return the metadata that is saved with the samples.

        `same` has for each query the document with the same text, or -1."""
        by_text = {self.texts[number].text: number for number in self.documents}
        return {
            "queries": list(self.belonging),
            "same": [by_text.get(self.texts[query].text, -1) for query in self.belonging],
            "relevant": list(self.belonging.values()),
            "documents": self.documents,
        }
