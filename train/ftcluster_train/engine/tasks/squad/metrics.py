"""Exact match and F1 of answers.

They are computed as in SQuAD's evaluation scripts (https://rajpurkar.github.io/SQuAD-explorer/,
evaluate-v1.1.py and evaluate-v2.0.py).
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Return the answer in lower case, without ASCII punctuation, articles and extra spaces.

    >>> normalise("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, true: Sequence[str]) -> float:
    """Return 1 if the normalised answer equals a normalised true answer, else 0."""
    return float(normalise(answer) in {normalise(text) for text in true})


def squad_f1(answer: str, true: Sequence[str], unanswerable: bool = True) -> float:
    """Return the F1 of the answer's words against the true answer that matches best.

    Args:
        unanswerable: True if an empty answer is right for an empty true answer, as in
            evaluate-v2.0.py; in evaluate-v1.1.py texts without a common word score 0.
    """
    words = normalise(answer).split()
    return max(_f1_of_words(words, normalise(text).split(), unanswerable) for text in true)


def _f1_of_words(answer: Sequence[str], true: Sequence[str], unanswerable: bool = True) -> float:
    if not answer or not true:
        return float(unanswerable and answer == true)
    common = (Counter(answer) & Counter(true)).total()
    # 2 P R / (P + R) with P = common / len(answer) and R = common / len(true)
    return 2 * common / (len(answer) + len(true))


def squad_metrics(
    answers: Sequence[str], true: Sequence[Sequence[str]], unanswerable: bool
) -> dict[str, float]:
    """Return the metrics of all questions, in percent.

    Args:
        answers: answer to each question; "" for "no answer".
        true: true answers of each question; empty if it has none.
        unanswerable: True to also score questions with (HasAns) and without an answer (NoAns)
            separately, as in SQuAD 2.0. Its script ignores true answers that are empty after
            normalisation; the script of SQuAD 1.1 scores them like any others.
    """
    results = []
    for answer, texts in zip(answers, true, strict=True):
        scored = [text for text in texts if normalise(text) or not unanswerable] or [""]
        f1 = squad_f1(answer, scored, unanswerable)
        results.append((bool(texts), exact_match(answer, scored), f1))
    metrics = _mean(results, "exact_match", "f1")
    if unanswerable:
        metrics |= _mean([r for r in results if r[0]], "HasAns_exact", "HasAns_f1")
        metrics |= _mean([r for r in results if not r[0]], "NoAns_exact", "NoAns_f1")
    return metrics


def _mean(results: Sequence[tuple[bool, float, float]], *names: str) -> dict[str, float]:
    """Return exact match and F1 in percent; empty without questions."""
    if not results:
        return {}
    columns = list(zip(*results, strict=True))[1:]
    return {
        name: 100.0 * sum(column) / len(results)
        for name, column in zip(names, columns, strict=True)
    }
