"""Formats training data, and their target tokens, as lines for a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from ftcluster.recipe.data_columns import columns_line
from ftcluster.text.plural import counted

SHOWN = 8  # maximum number of classes in a line
TARGET_MARKS = "target tokens are between « and », and after ->"


def set_line(data_set: Mapping[str, Any]) -> str:
    """Format the counts of a data set from `engine.data_report` or `recipe.data_counts`.

    >>> set_line({"set": "train", "rows": 3, "classes": {"good": 2, "bad": 1}, "samples": 3,
    ...           "median": 7, "longest": 8, "limit": 8, "cut": 1, "left_out": 0})
    'train: 3 rows, 2 classes (good 2, bad 1), 7 tokens (median), 8 at most, 1 cut to 8'
    >>> set_line({"set": "validation", "rows": 2, "duplicates": 1})
    'validation: 2 rows, 1 OF THEM ALSO IN TRAIN'
    """
    rows, samples = data_set.get("rows"), data_set.get("samples")
    parts = [counted(rows, "row")] if rows is not None else []
    if samples is not None and samples != rows:
        parts.append(counted(samples, "sample"))
    if classes := data_set.get("classes"):
        first = ", ".join(f"{name} {count}" for name, count in list(classes.items())[:SHOWN])
        more = ", ..." if len(classes) > SHOWN else ""
        count = data_set.get("class_count", len(classes))  # `classes` may omit rare classes
        parts.append(f"{count} class{'es' * (count > 1)} ({first}{more})")
    if "median" in data_set:
        parts += [f"{data_set['median']} tokens (median)", f"{data_set['longest']} at most"]
        parts += [f"{data_set['cut']} cut to {data_set['limit']}"] if data_set["cut"] else []
    parts += [f"{data_set['left_out']} LEFT OUT"] if data_set.get("left_out") else []
    if data_set.get("duplicates"):
        parts.append(f"{data_set['duplicates']} OF THEM ALSO IN TRAIN")
    columns = {use: tuple(names) for use, names in data_set.get("columns", {}).items()}
    parts += [columns_line(columns)] if columns else []
    return _in_one_line(f"{data_set['set']}: {', '.join(parts)}")


def sample_lines(sample: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each sequence of a sample; target tokens are between « and ».

    >>> list(sample_lines([{"label": "good", "parts": [["a\\nb ", False], ["c", True]]}]))
    ['  a\\\\nb «c» -> good']
    """
    place = f"{sample[0]['set']}: " if sample and sample[0].get("set") else ""
    for document in sample:
        text = "".join(f"«{part}»" if is_target else part for part, is_target in document["parts"])
        label = f" -> {document['label']}" if document["label"] else ""
        yield "  " + _in_one_line(place + text + label)


def _in_one_line(text: str) -> str:
    """Escape line breaks, so that a host's text cannot imitate lines of ftcluster's output."""
    return text.replace("\n", "\\n")


def data_lines(event: Mapping[str, Any], samples: int) -> list[str]:
    """Format an event `data` as lines, with at most `samples` samples."""
    shown = event["samples"][:samples]
    head = [f"samples as the model receives them; {TARGET_MARKS}:"] if shown else []
    lines = [line for sample in shown for line in sample_lines(sample)]
    return [*map(set_line, event["sets"]), *head, *lines]
