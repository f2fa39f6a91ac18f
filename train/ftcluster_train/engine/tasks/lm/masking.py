"""Random masking of tokens, different in each epoch, as in BERT (Devlin et al. 2018).

The masks depend only on the seed, the epoch and the index of the sample. They are therefore the
same for any number of ranks and after a restart.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

SPECIAL, BEGINS, INSIDE = 0, 1, 2  # kinds of tokens: special, first token of a word, other
MASKED, RANDOM = 0.8, 0.1  # fractions of the targets replaced by the mask token or a random token


@dataclass(frozen=True)
class Masks:
    """Masks tokens at random, as in transformers' DataCollatorForLanguageModeling.

    Attributes:
        mask: id of the mask token.
        vocabulary: number of tokens in the vocabulary.
        probability: fraction of the tokens or words that become targets.
        whole_words: True to choose words instead of tokens; all tokens of a chosen word are
            targets.
    """

    mask: int
    vocabulary: int
    probability: float
    whole_words: bool

    def draw(
        self, tokens: Sequence[int], kinds: Sequence[int], key: str
    ) -> tuple[list[int], list[int]]:
        """Choose target tokens, at least one, and mask them.

        Args:
            kinds: kind of each token; at least one token is not special.
            key: string that seeds the random numbers.

        Returns:
            The token ids that the model reads, and the indices of the targets.
        """
        kind, ids = torch.tensor(kinds), torch.tensor(tokens)
        kind[(kind != SPECIAL).int().argmax()] = BEGINS  # a block may begin within a word
        draws = torch.Generator().manual_seed(_number_of(key))
        drawn = torch.rand(len(ids), generator=draws)
        eligible = kind == BEGINS if self.whole_words else kind != SPECIAL
        drawn[~eligible] = 1.0
        chosen = drawn < max(self.probability, float(drawn.min()) * (1 + 1e-6))
        if self.whole_words:
            word = eligible.cumsum(0) - 1
            chosen = chosen[eligible][word.clamp(min=0)] & (kind != SPECIAL)
            ids[chosen] = self.mask
        else:
            kinds_of_change = torch.rand(len(ids), generator=draws)
            others = torch.randint(self.vocabulary, (len(ids),), generator=draws)
            ids[chosen & (kinds_of_change < MASKED)] = self.mask
            change = chosen & (kinds_of_change >= MASKED) & (kinds_of_change < MASKED + RANDOM)
            ids[change] = others[change]
        return ids.tolist(), chosen.nonzero().flatten().tolist()


def _number_of(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little")


def kinds_of(text: str, special: Sequence[int], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return the kind of each token.

    A token begins a word if there is a space before it, or a gap after the previous token.

    Args:
        special: 1 for each special token, 0 for each other token.
        offsets: character range of each token; some tokenizers include the space before a word.

    >>> kinds_of("abc d", [1, 0, 0, 0, 1], [(0, 0), (0, 2), (2, 3), (4, 5), (0, 0)])
    [0, 1, 2, 1, 0]
    >>> kinds_of("abc d", [0, 0, 0], [(0, 2), (2, 3), (3, 5)])
    [1, 2, 1]
    """
    token_kinds, before = [], None
    for is_special, (begin, end) in zip(special, offsets, strict=True):
        continues = begin == before and not text[begin : begin + 1].isspace()
        token_kinds.append(SPECIAL if is_special else INSIDE if continues else BEGINS)
        before = None if is_special else end
    return token_kinds
