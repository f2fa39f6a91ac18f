"""Scores of predicted entities, counted as in seqeval, and their format in the output.

A predicted entity is correct if its type, its first word and its last word are correct. IOB tags
are read as in conlleval and in seqeval's default mode. IOBES tags must be complete, as in seqeval's
strict mode.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ftcluster_common.data.tagged_words import Entity, Scheme, entities, whole_entities
from ftcluster_common.protocol.class_report import ClassReport, ClassScores, report_of_classes

Rows = Sequence[Sequence[str]]  # tags of the words, for each row


def entities_of(tags: Sequence[str], scheme: Scheme) -> list[Entity]:
    """Return the entities of a row; if tags are plain, each word is an entity."""
    if scheme == "plain":
        return [(tag, number, number + 1) for number, tag in enumerate(tags)]
    return whole_entities(tags) if scheme == "IOBES" else entities(tags)


def entity_report(found: Rows, true: Rows, scheme: Scheme) -> ClassReport:
    """Return the class report, in which the classes are entity types or plain tags.

    >>> [one.f1 for one in entity_report([["B-A", "O"]], [["B-A", "I-A"]], "IOB2").classes]
    [0.0]
    """
    if scheme == "plain":
        names = sorted({tag for row in (*found, *true) for tag in row})
        numbers = {name: number for number, name in enumerate(names)}
        flat = [[numbers[tag] for row in rows for tag in row] for rows in (found, true)]
        return report_of_classes(flat[0], flat[1], names)
    support, predicted, right = Counter[str](), Counter[str](), Counter[str]()
    for row, wanted in zip(found, true, strict=True):
        chosen, labels = {*entities_of(row, scheme)}, {*entities_of(wanted, scheme)}
        for count, spans in ((predicted, chosen), (support, labels), (right, chosen & labels)):
            count.update(kind for kind, _, _ in spans)
    kinds = sorted({*support, *predicted})
    classes = tuple(
        ClassScores(kind, support[kind], predicted[kind], right[kind]) for kind in kinds
    )
    return ClassReport(classes, (), len(true), several=True)


def entity_metrics(
    report: ClassReport, found: Rows, true: Rows, scheme: Scheme
) -> dict[str, float]:
    """Return word accuracy, and precision, recall and F1 of entities (only F1 for plain tags)."""
    pairs = [
        pair
        for row, wanted in zip(found, true, strict=True)
        for pair in zip(row, wanted, strict=True)
    ]
    accuracy = sum(tag == wanted for tag, wanted in pairs) / len(pairs)
    if scheme == "plain":
        of_f1 = {f"f1_{name}": f1 for name, (_, _, f1) in report.averages.items()}
        return {"accuracy": accuracy, **of_f1}
    precision, recall, f1 = report.averages["micro"]
    return {"precision": precision, "recall": recall, "f1": f1, "accuracy": accuracy}


def found_entities(
    tags: Sequence[str], scores: Sequence[float], text: str, begins: Sequence[int],
    ends: Sequence[int], words: Sequence[int] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the predicted entities of a row, grouped as in transformers' pipeline.

    Args:
        tags: predicted tags.
        scores: probability of each tag.
        text: text of the row.
        begins: index of the first character that each tag covers.
        ends: index after the last character that each tag covers.
        words: word index of each tag; if given, entities get word indices instead of character
            indices.

    >>> found_entities(["B-A", "I-A"], [0.5, 1.0], "New York", [0, 4], [3, 8])
    [{'start': 0, 'end': 8, 'label': 'A', 'text': 'New York', 'score': 0.75}]
    """
    results = []
    for kind, first, behind in entities(tags):
        start, end = begins[first], ends[behind - 1]
        part, score = text[start:end], sum(scores[first:behind]) / (behind - first)
        if words:
            start, end = words[first], words[behind - 1] + 1
        results.append(
            {"start": start, "end": end, "label": kind, "text": part, "score": round(score, 6)}
        )
    return results
