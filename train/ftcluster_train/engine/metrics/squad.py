"""Exact match and F1 of answers, as in SQuAD's evaluation scripts.

Sources: https://rajpurkar.github.io/SQuAD-explorer/, evaluate-v1.1.py and evaluate-v2.0.py.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Lower case, without ASCII punctuation, articles and extra blanks.

    >>> normalise("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, true: Sequence[str]) -> float:
    """1 if the answer is one of the true ones, both normalised, else 0."""
    return float(normalise(answer) in {normalise(text) for text in true})


def f1(answer: str, true: Sequence[str]) -> float:
    """The best F1 of the answer with a true answer, as bags of words.

    If one of them is empty: 1 if both are, else 0 (evaluate-v2.0.py).
    """
    return max(_f1_of_one(normalise(answer).split(), normalise(text).split()) for text in true)


def _f1_of_one(answer: Sequence[str], true: Sequence[str]) -> float:
    if not answer or not true:
        return float(answer == true)
    common = (Counter(answer) & Counter(true)).total()
    # 2 P R / (P + R) with P = common / len(answer) and R = common / len(true)
    return 2 * common / (len(answer) + len(true))


def score(
    answers: Sequence[str], true: Sequence[Sequence[str]], unanswerable: bool
) -> dict[str, float]:
    """The metrics of all questions, in percent.

    Args:
        answers: one per question; "" for "no answer".
        true: the true answers of each question; none if it has none.
        unanswerable: whether to score questions with (HasAns) and without an answer (NoAns)
            separately as well, as in SQuAD 2.0.
    """
    results = []
    for answer, texts in zip(answers, true, strict=True):
        known = [text for text in texts if normalise(text)] or [""]
        results.append((bool(texts), exact_match(answer, known), f1(answer, known)))
    metrics = _mean(results, "exact_match", "f1")
    if unanswerable:
        metrics |= _mean([r for r in results if r[0]], "HasAns_exact", "HasAns_f1")
        metrics |= _mean([r for r in results if not r[0]], "NoAns_exact", "NoAns_f1")
    return metrics


def _mean(results: Sequence[tuple[bool, float, float]], *names: str) -> dict[str, float]:
    """Percent of exact match and F1; empty without questions."""
    if not results:
        return {}
    columns = list(zip(*results, strict=True))[1:]
    return {
        name: 100.0 * sum(column) / len(results)
        for name, column in zip(names, columns, strict=True)
    }
