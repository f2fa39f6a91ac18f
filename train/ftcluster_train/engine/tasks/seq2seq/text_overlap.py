"""Metrics for the overlap of texts with references: ROUGE, chrF and BLEU, in plain Python.

All values are in percent. ROUGE has the same values as rouge-score 0.1.2 without stemming. chrF and
BLEU have the same values as sacrebleu 2.6 with its defaults (chrF2; BLEU with the tokenizer 13a and
exponential smoothing).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

CHARACTERS = 6  # length of the longest n-gram of chrF
BETA = 2.0  # weight of recall relative to precision in chrF
WORDS = 4  # length of the longest n-gram of BLEU
_NO_WORD = re.compile(r"[^a-z0-9]+")
# the tokenization for BLEU at WMT, from mteval-v13a.pl
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_SPLITS = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)


def overlap(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the metrics of generated texts, each with one reference.

    ROUGE is the mean F1 over the texts. It ignores all characters except a-z, A-Z and digits. chrF
    and BLEU are computed from the n-gram counts of all texts together.
    """
    pairs = list(zip(texts, references, strict=True))
    words = [(_rouge_words(text), _rouge_words(reference)) for text, reference in pairs]
    return {
        **{f"rouge{n}": _mean(_rouge_n(*pair, n) for pair in words) for n in (1, 2)},
        "rougeL": _mean(_rouge_l(*pair) for pair in words),
        "chrf": chrf(pairs),
        "bleu": bleu(pairs),
    }


def _mean(shares: Iterable[float]) -> float:
    values = list(shares)
    return 100 * math.fsum(values) / len(values)


def _rouge_words(text: str) -> list[str]:
    return _NO_WORD.sub(" ", text.lower()).split()


def _rouge_n(text: Sequence[str], reference: Sequence[str], n: int) -> float:
    found, wanted = _n_grams(text, n), _n_grams(reference, n)
    return _f1((found & wanted).total(), found.total(), wanted.total())


def _rouge_l(text: Sequence[str], reference: Sequence[str]) -> float:
    return _f1(common_words(text, reference), len(text), len(reference))


def _f1(common: int, found: int, wanted: int) -> float:
    return 2 * common / (found + wanted) if common else 0.0


def common_words(text: Sequence[str], reference: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two word lists.

    The algorithm uses an integer with a bit for each word of `text` (Hyyro 2004, Bit-parallel
    LCS-length computation).

    >>> common_words("a b c d".split(), "b x d a".split())
    2
    """
    places: dict[str, int] = {}
    for number, word in enumerate(text):
        places[word] = places.get(word, 0) | 1 << number
    whole = bits = (1 << len(text)) - 1
    for word in reference:
        matches = bits & places.get(word, 0)
        bits = ((bits + matches) | (bits - matches)) & whole
    return len(text) - bits.bit_count()


def chrf(pairs: Iterable[tuple[str, str]]) -> float:
    """Return chrF: the F-score of character n-grams, with more weight on recall (Popovic 2015)."""
    found, wanted, common = ([0] * CHARACTERS for _ in range(3))
    for text, reference in pairs:
        letters = "".join(text.split()), "".join(reference.split())
        for n in range(CHARACTERS):
            grams, expected = (_n_grams(each, n + 1) for each in letters)
            found[n] += grams.total() if expected else 0  # as in sacrebleu
            wanted[n] += expected.total()
            common[n] += (grams & expected).total()
    counted = [n for n in range(CHARACTERS) if found[n] and wanted[n]]
    if not counted:
        return 0.0
    precision = sum(common[n] / found[n] for n in counted) / len(counted)
    recall = sum(common[n] / wanted[n] for n in counted) / len(counted)
    both = BETA**2 * precision + recall
    return 100 * (1 + BETA**2) * precision * recall / both if both else 0.0


def bleu(pairs: Iterable[tuple[str, str]]) -> float:
    """Return BLEU, computed over all texts together (Papineni et al. 2002)."""
    found, common, length, wanted = [0] * WORDS, [0] * WORDS, 0, 0
    for text, reference in pairs:
        output, expected = _bleu_words(text), _bleu_words(reference)
        length, wanted = length + len(output), wanted + len(expected)
        for n in range(WORDS):
            grams = _n_grams(output, n + 1)
            found[n] += grams.total()
            common[n] += (grams & _n_grams(expected, n + 1)).total()
    if not any(common) or not all(found):
        return 0.0
    logarithms, halved = 0.0, 1
    for matches, total in zip(common, found, strict=True):
        halved *= 1 if matches else 2  # n-grams without a match count as 1/2, 1/4, ... of a match
        logarithms += math.log((matches or 1 / halved) / total)
    brevity = min(0.0, 1 - wanted / length)
    return 100 * math.exp(brevity + logarithms / WORDS)


def _bleu_words(text: str) -> list[str]:
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for written, letter in _ENTITIES:
        text = text.replace(written, letter)
    text = f" {text} "
    for split, parts in _SPLITS:
        text = split.sub(parts, text)
    return text.split()


def _n_grams(parts: Sequence[Any], n: int) -> Counter[Any]:
    if n == 1:
        return Counter(parts)
    if n == 2:
        return Counter(pairwise(parts))
    return Counter(tuple(parts[i : i + n]) for i in range(len(parts) - n + 1))
