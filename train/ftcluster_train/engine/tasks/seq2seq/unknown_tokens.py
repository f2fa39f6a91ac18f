"""Counts of unknown tokens in texts, with examples of the text that the tokenizer cannot encode."""

from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from ftcluster_train.engine.models import unknown_id

SHOWN = 6  # maximum number of examples in a notice
MOST_EXAMPLES = 1000  # maximum number of texts to tokenize again for examples


class UnknownTokens:
    """Counter of unknown tokens in texts of one kind, such as sources.

    Args:
        kind: name of the tokenizer's argument for these texts.

    Attributes:
        token: id of the unknown token; None if this token also has another meaning.
        texts: number of texts.
        affected: number of texts with an unknown token.
        tokens: number of unknown tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kind: str = "text") -> None:
        self._tokenizer, self._kind = tokenizer, kind
        self.token = unknown_id(tokenizer)
        self._pieces: Counter[str] = Counter()
        self.texts = self.affected = self.tokens = 0

    def add(self, ids: Sequence[Sequence[int]], texts: Sequence[str]) -> None:
        """Count the unknown tokens of texts.

        Args:
            ids: tokens of each text, which may be truncated.
        """
        self.texts += len(texts)
        counts = [sum(token == self.token for token in tokens) for tokens in ids]
        self.tokens += sum(counts)
        again = [text for text, count in zip(texts, counts, strict=True) if count]
        room = max(0, MOST_EXAMPLES - self.affected)
        self.affected += len(again)
        if (
            again[:room] and self._tokenizer.is_fast
        ):  # slow tokenizers do not report character positions
            encoded = self._tokenizer(**{self._kind: again[:room]}, return_offsets_mapping=True)
            rows = zip(encoded["input_ids"], encoded["offset_mapping"], again, strict=False)
            self._pieces.update(
                piece
                for tokens, places, text in rows
                for token, (start, end) in zip(tokens, places, strict=True)
                if token == self.token and (piece := text[start:end].strip() or text[start:end])
            )

    def examples(self) -> str:
        """Return the most frequent unknown strings with their counts; "" if there are none."""
        shown = ", ".join(f"{piece!a} {count}" for piece, count in self._pieces.most_common(SHOWN))
        return shown + ", ..." * (len(self._pieces) > SHOWN)

    def notice(self, split: str, name: str) -> list[str]:
        """Return a notice about unknown tokens for the user; [] if every token is known.

        Args:
            name: plural noun for the texts, such as sources.
        """
        if not self.affected:
            return []
        examples = self.examples()
        return [
            f"{split}: NOT KNOWN to the tokenizer: {self.affected} of {self.texts} {name} have "
            f"{self.tokens} unknown tokens" + f" ({examples})" * bool(examples) + ", which the "
            "model cannot distinguish; use a model whose tokenizer can represent these texts"
        ]
