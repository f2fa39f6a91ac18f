"""Metrics in plain Python: of GLUE, of SQuAD's answers, of retrieval.

Those of GLUE are tested against values of scikit-learn and scipy. Exact match and F1 of answers are
those of SQuAD's evaluation scripts (https://rajpurkar.github.io/SQuAD-explorer/, evaluate-v1.1.py
and evaluate-v2.0.py). Those of retrieval have MTEB's names.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ftcluster_common.protocol.class_report import ClassReport

HALF = 0.5
ALIKE = 1e-3  # predictions that differ by less of the labels' range say nothing of a text
FEWEST = 10  # rows of a class; a threshold that fewer of them decide is an accident
DEPTH = 10  # the texts that are found for a query
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accuracy(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """The share of correct predictions."""
    return sum(p == y for p, y in zip(predictions, labels, strict=True)) / len(labels)


def matthews(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Matthews' correlation coefficient for any number of classes; 0 if undefined.

    With c correct predictions of s samples, and p_k predictions and t_k labels of class k:
    (c s - sum p_k t_k) / sqrt((s^2 - sum p_k^2) (s^2 - sum t_k^2)). Source: Gorodkin 2004,
    "Comparing two K-category assignments by a K-category correlation coefficient".
    """
    predicted, true = Counter(predictions), Counter(labels)
    samples = len(labels)
    right = sum(p == y for p, y in zip(predictions, labels, strict=True))
    above = right * samples - sum(predicted[k] * true[k] for k in true)
    below = samples**2 - sum(n * n for n in predicted.values())
    below *= samples**2 - sum(n * n for n in true.values())
    return above / math.sqrt(below) if below else 0.0


def pearson(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """Pearson's correlation coefficient; 0 if one side is constant."""
    mean_p, mean_y = math.fsum(predictions) / len(predictions), math.fsum(labels) / len(labels)
    pairs = [(p - mean_p, y - mean_y) for p, y in zip(predictions, labels, strict=True)]
    below = math.fsum(p * p for p, _ in pairs) * math.fsum(y * y for _, y in pairs)
    return math.fsum(p * y for p, y in pairs) / math.sqrt(below) if below else 0.0


def spearman(predictions: Sequence[float], labels: Sequence[float]) -> float:
    """Spearman's rank correlation: Pearson's of the ranks."""
    return pearson(ranks(predictions), ranks(labels))


def constant_notice(predictions: Sequence[float], labels: Sequence[float]) -> str:
    """Return what to say of predictions that hardly depend on their text; "" where they do.

    >>> constant_notice([5.5, 5.5], [1.0, 9.0])
    'ALL 2 PREDICTIONS ARE ALIKE, from 5.5 to 5.5, where the labels are from 1 to 9'
    >>> constant_notice([1.5, 8.0], [1.0, 9.0])
    ''
    """
    low, high = min(predictions), max(predictions)
    least, most = min(labels), max(labels)
    if len(labels) < 2 or least == most or high - low > ALIKE * (most - least):
        return ""
    return (
        f"ALL {len(labels)} PREDICTIONS ARE ALIKE, from {low:.6g} to {high:.6g}, where the labels "
        f"are from {least:g} to {most:g}"
    )


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; equal values share their mean rank.

    >>> ranks([10.0, 30.0, 10.0])
    [1.5, 3.0, 1.5]
    """
    positions: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values), start=1):
        positions.setdefault(value, []).append(rank)
    mean = {value: sum(places) / len(places) for value, places in positions.items()}
    return [mean[value] for value in values]


METRICS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "accuracy": accuracy,  # type: ignore[dict-item] # of classes, which are whole numbers
    "matthews": matthews,  # type: ignore[dict-item]
    "pearson": pearson,
    "spearman": spearman,
}


def default_metrics(classes: int, several: bool = False) -> tuple[str, ...]:
    """The metrics of a recipe that names none.

    Args:
        classes: number of classes; 0 for a regression.
        several: whether a row may have several.
    """
    if several:
        return ("f1_micro", "f1_macro")
    if not classes:
        return ("pearson", "spearman")
    return ("accuracy", "f1" if classes == 2 else "f1_macro")


def measure(
    names: Sequence[str],
    predictions: Sequence[Any],
    labels: Sequence[Any],
    report: ClassReport | None = None,
) -> dict[str, float]:
    """Each named metric over all samples.

    Args:
        predictions: classes, sets of classes, or numbers; so are labels.
        report: of the classes, which has their F1.
    """
    known = f1_scores(report) if report else {}
    return {
        name: known[name] if name in known else METRICS[name](predictions, labels) for name in names
    }


def f1_scores(report: ClassReport) -> dict[str, float]:
    """F1 by the names of scikit-learn's scorers; `f1` is that of the positive class."""
    scores = {f"f1_{name}": f1 for name, (_, _, f1) in report.averages.items()}
    if report.positive:
        scores["f1"] = report.classes[1].f1
    if not report.several:  # each wrong row is a false positive and a false negative
        scores["f1_micro"] = sum(one.right for one in report.classes) / report.rows
    return scores


def best_threshold(probabilities: Sequence[float], labels: Sequence[bool]) -> float:
    """The probability from which a class has the highest F1 where it is predicted.

    It is between two that occur; of equally good ones that nearest to one half; one half for a
    class without rows.

    >>> best_threshold([0.9, 0.4, 0.2], [True, True, False])
    0.30000000000000004
    """
    pairs = sorted(zip(probabilities, labels, strict=True), reverse=True)
    support = sum(labels)
    found, right = [(0.0, 0.0, HALF)], 0
    for count, (probability, label) in enumerate(pairs, start=1):
        right += label
        following = pairs[count][0] if count < len(pairs) else 0.0
        if following < probability and right:
            threshold = (probability + following) / 2
            found.append((2 * right / (count + support), -abs(threshold - HALF), threshold))
    return max(found)[2]


def perplexity(loss: float) -> float:
    """exp of the mean loss per token, in nats; finite for any loss."""
    return math.exp(min(loss, 700.0))


def normalise(answer: str) -> str:
    """Lower case, without ASCII punctuation, articles and extra blanks.

    >>> normalise("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, true: Sequence[str]) -> float:
    """1 if the answer is one of the true ones, both normalised, else 0."""
    return float(normalise(answer) in {normalise(text) for text in true})


def squad_f1(answer: str, true: Sequence[str], unanswerable: bool = True) -> float:
    """Return the best F1 of the answer with a true answer, as bags of words.

    Args:
        unanswerable: whether an empty answer is right if the true one is empty too, as in
            evaluate-v2.0.py; in evaluate-v1.1.py texts without a common word have 0.
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
    """The metrics of all questions, in percent.

    Args:
        answers: one per question; "" for "no answer".
        true: the true answers of each question; none if it has none.
        unanswerable: whether to score questions with (HasAns) and without an answer (NoAns)
            separately as well, as in SQuAD 2.0, whose script leaves out true answers that are
            empty once they are normalised; that of SQuAD 1.1 scores them like others.
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
    """Percent of exact match and F1; empty without questions."""
    if not results:
        return {}
    columns = list(zip(*results, strict=True))[1:]
    return {
        name: 100.0 * sum(column) / len(results)
        for name, column in zip(names, columns, strict=True)
    }


def retrieval_metrics(
    retrieved: Sequence[Sequence[int]], relevant: Sequence[Collection[int]]
) -> dict[str, float]:
    """Means over the queries; a text is relevant or not.

    nDCG is DCG divided by that of the best order, with DCG the sum of 1 / log2(rank + 1) over the
    relevant texts (Järvelin and Kekäläinen 2002, Cumulated Gain-Based Evaluation of IR Techniques).

    Args:
        retrieved: for each query the numbers of texts, the best one first.
        relevant: for each query the numbers of all texts that belong to it.

    >>> retrieval_metrics([[3, 1]], [{1}])["mrr_at_10"]
    0.5
    """
    gains, ranks, first = [], [], []
    for texts, wanted in zip(retrieved, relevant, strict=True):
        hits = [rank for rank, text in enumerate(texts[:DEPTH], start=1) if text in wanted]
        best = sum(map(_gain, range(1, min(len(wanted), DEPTH) + 1)))
        gains.append(sum(map(_gain, hits)) / best)
        ranks.append(1 / hits[0] if hits else 0.0)
        first.append(float(hits[:1] == [1]))
    return {
        f"ndcg_at_{DEPTH}": math.fsum(gains) / len(gains),
        f"mrr_at_{DEPTH}": math.fsum(ranks) / len(ranks),
        "accuracy_at_1": math.fsum(first) / len(first),
    }


def ranking_metrics(
    queries: Sequence[tuple[Sequence[float], Sequence[bool]]],
) -> dict[str, float]:
    """Return the metrics of `retrieval_metrics` for texts that are ordered by their scores.

    Texts with equal scores have no order. Each metric is its mean over all orders of them, as
    scikit-learn's ndcg_score shares ties (McSherry and Najork 2008, Computing Information Retrieval
    Performance Measures Efficiently in the Presence of Tied Scores).

    Args:
        queries: for each query the scores of its texts, and which of them belong to it.

    >>> ranking_metrics([([0.5, 0.5], [True, False])])["mrr_at_10"]
    0.75
    """
    gains, reciprocals, first = [], [], []
    for scores, relevant in queries:
        gain, reciprocal, missed, place = 0.0, 0.0, 1.0, 1
        groups: dict[float, list[bool]] = {}
        for score, right in zip(scores, relevant, strict=True):
            groups.setdefault(score, []).append(right)
        for number, score in enumerate(sorted(groups, reverse=True)):
            size, hits = len(groups[score]), sum(groups[score])
            if not number:
                first.append(hits / size)
            ranks = range(place, place + size)
            gain += hits / size * sum(_gain(rank) for rank in ranks if rank <= DEPTH)
            # `missed`: the probability that no text before the rank is relevant
            for wrong, rank in enumerate(ranks):
                hit = hits / (size - wrong) if wrong <= size - hits else 0.0
                if rank <= DEPTH and hits:
                    reciprocal += missed * hit / rank
                missed *= 1 - hit
            place += size
        best = sum(map(_gain, range(1, min(sum(relevant), DEPTH) + 1)))
        gains.append(gain / best)
        reciprocals.append(reciprocal)
    return {
        f"ndcg_at_{DEPTH}": math.fsum(gains) / len(gains),
        f"mrr_at_{DEPTH}": math.fsum(reciprocals) / len(reciprocals),
        "accuracy_at_1": math.fsum(first) / len(first),
    }


def recall(
    retrieved: Sequence[Sequence[int]], relevant: Sequence[Collection[int]], depth: int
) -> float:
    """The mean share of a query's texts that are among the first `depth`."""
    pairs = zip(retrieved, relevant, strict=True)
    shares = [len({*texts[:depth]} & {*wanted}) / len(wanted) for texts, wanted in pairs]
    return math.fsum(shares) / len(shares)


def _gain(rank: int) -> float:
    return 1 / math.log2(rank + 1)
