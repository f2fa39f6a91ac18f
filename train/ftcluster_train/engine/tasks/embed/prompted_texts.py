"""Texts behind their prompts, and sets of them that are searched. Standard library only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Prompts(NamedTuple):
    """The texts that are written before each query and before each other text.

    Attributes:
        pooled: whether embeddings are also made of the prompts' tokens.
    """

    query: str = ""
    text: str = ""
    pooled: bool = True


class PromptedText(NamedTuple):
    """A text, and what is written before it."""

    prompt: str
    text: str

    def __str__(self) -> str:
        return self.prompt + self.text


@dataclass(frozen=True)
class Search:
    """What a validation set has: texts, and which of them belong to which queries.

    Attributes:
        texts: each once; a text that is a query and a document is there twice where the prompts of
            these differ.
        belonging: by the number of a query, those of its texts.
        documents: the numbers of all texts that may be found.
    """

    texts: list[PromptedText]
    belonging: Mapping[int, Sequence[int]]
    documents: Sequence[int]

    @classmethod
    def of(cls, rows: Iterable[Sequence[PromptedText]]) -> "Search":
        """Read rows of texts, each with a query and the text that belongs to it first."""
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
        """For the samples' folder; `same`: for each query the document that is its text, or -1."""
        by_text = {self.texts[number].text: number for number in self.documents}
        return {
            "queries": list(self.belonging),
            "same": [by_text.get(self.texts[query].text, -1) for query in self.belonging],
            "relevant": list(self.belonging.values()),
            "documents": self.documents,
        }
