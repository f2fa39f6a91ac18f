"""Which tokens of a text are masked, drawn anew in each epoch, as BERT's are (Devlin et al. 2018).

The draws depend on the seed, the epoch and the number of the sample alone, so they are the same on
any number of ranks and after a restart.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

SPECIAL, BEGINS, GOES_ON = 0, 1, 2  # what a token is: none of the text, or of a word
MASKED, RANDOM = 0.8, 0.1  # of the chosen tokens, become the mask or any token; others stay


@dataclass(frozen=True)
class Masks:
    """How tokens are masked; the fields are those of transformers' DataCollatorForLanguageModeling.

    Attributes:
        mask: the number of the token that stands for a masked one.
        vocabulary: how many tokens there are.
        whole_words: whether words are chosen, and all of their tokens become masks.
    """

    mask: int
    vocabulary: int
    probability: float
    whole_words: bool

    def draw(
        self, tokens: Sequence[int], kinds: Sequence[int], key: str
    ) -> tuple[list[int], list[int]]:
        """The tokens that the model gets, and the places of those to predict, one at least.

        Args:
            kinds: of each token; one of them begins a word.
            key: what the draws depend on.
        """
        kind, ids = torch.tensor(kinds), torch.tensor(tokens)
        kind[(kind != SPECIAL).int().argmax()] = BEGINS  # also where a word goes on in a block
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
    """What each token is; a word begins where another token does not end, and behind a space.

    Args:
        special: 1 for each token that is none of the text.
        offsets: the characters of the tokens; some tokenizers count the space before a word to it.

    >>> kinds_of("abc d", [1, 0, 0, 0, 1], [(0, 0), (0, 2), (2, 3), (4, 5), (0, 0)])
    [0, 1, 2, 1, 0]
    >>> kinds_of("abc d", [0, 0, 0], [(0, 2), (2, 3), (3, 5)])
    [1, 2, 1]
    """
    found, before = [], None
    for is_special, (begin, end) in zip(special, offsets, strict=True):
        goes_on = begin == before and not text[begin : begin + 1].isspace()
        found.append(SPECIAL if is_special else GOES_ON if goes_on else BEGINS)
        before = None if is_special else end
    return found
