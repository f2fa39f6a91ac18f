"""Metrics of answers: exact match and F1.

The metrics are computed as in SQuAD's evaluation scripts
(https://rajpurkar.github.io/SQuAD-explorer/, evaluate-v1.1.py and evaluate-v2.0.py).
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Return the answer in lower case, without ASCII punctuation, articles or extra spaces.

    >>> normalise("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, true: Sequence[str]) -> float:
    """Return 1 if the normalised answer equals a normalised true answer, otherwise 0."""
    return float(normalise(answer) in {normalise(text) for text in true})


def squad_f1(answer: str, true: Sequence[str], unanswerable: bool = True) -> float:
    """Return the F1 of an answer's words against the true answer that gives the highest F1.

    Args:
        unanswerable: True to return 1 for an empty answer if a true answer is empty, as in
            evaluate-v2.0.py. False to return 0, as in evaluate-v1.1.py.
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
        true: true answers of each question; [] for a question without an answer.
        unanswerable: True for SQuAD 2.0: also return the metrics of questions with an answer
            (HasAns) and without an answer (NoAns), and ignore true answers that are empty after
            normalisation. False for SQuAD 1.1.
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
    """Return exact match and F1 in percent, or {} if there are no questions."""
    if not results:
        return {}
    columns = list(zip(*results, strict=True))[1:]
    return {
        name: 100.0 * sum(column) / len(results)
        for name, column in zip(names, columns, strict=True)
    }
