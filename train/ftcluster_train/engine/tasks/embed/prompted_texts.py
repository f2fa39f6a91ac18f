"""Texts with prompts, and search problems for validation. Standard library only."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ftcluster_common.models.row_hashes import HashNumbers, hash_of_text


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


class Search:
    """The search problem of a validation set: queries, and the texts that each query should find.

    The texts are numbered in the order of their first use. A text that is both a query and a
    document occurs twice if its tokens differ between the two uses. The texts themselves are not
    kept: each text needs 21 bytes of memory, and each query a few hundred.

    Args:
        document_prompt: prompt of all texts that are not queries.
    """

    def __init__(self, document_prompt: str) -> None:
        self._document_prompt = document_prompt
        self._numbers = HashNumbers()
        self._is_document = bytearray()
        self._belonging: dict[int, dict[int, None]] = {}
        self._as_document: dict[int, int] = {}  # hash of each query's text as a document

    def add(self, row: Sequence[PromptedText]) -> list[PromptedText]:
        """Add a row, and return its texts that are new in the search problem, in their order.

        Args:
            row: a query, the text that belongs to the query, and further texts.
        """
        numbers, new = [], []
        for text in row:
            number = self._numbers.add(_hash_of(text))
            numbers.append(number)
            if number == len(self._is_document):
                self._is_document.append(False)
                new.append(text)
        query, positive, *others = numbers
        self._belonging.setdefault(query, {})[positive] = None
        self._as_document[query] = _hash_of(PromptedText(self._document_prompt, row[0].text))
        for document in (positive, *others):
            self._is_document[document] = True
        return new

    def number_of(self, text: PromptedText) -> int:
        """Return the number of a text that was added."""
        number = self._numbers.get(_hash_of(text))
        assert number is not None, "the text was not added"
        return number

    @property
    def about(self) -> dict[str, Any]:
        """Return the metadata for the samples, which has a few numbers for each query.

        All texts except `only_queries` are documents, which a search may find. The field `relevant`
        contains the documents that belong to each query. The field `same` contains, for each query,
        the document with the same text; -1 for none.
        """
        queries = list(self._belonging)
        same = [self._numbers.get(self._as_document[query]) for query in queries]
        return {
            "queries": queries,
            "same": [-1 if n is None or not self._is_document[n] else n for n in same],
            "relevant": [list(texts) for texts in self._belonging.values()],
            "only_queries": [query for query in queries if not self._is_document[query]],
        }


def _hash_of(text: PromptedText) -> int:
    return hash_of_text(f"{int(text.is_query)}{text.prompt}\0{text.text}")
