"""The report on a run's data, which the user can check before training starts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from ftcluster_common.data.data_sets import data_set_of, is_train
from ftcluster_common.models.row_hashes import ROWS, RowHashes, hash_of, write_rows
from ftcluster_train.engine.data.token_samples import Samples
from ftcluster_train.engine.tasks.base import Document, Task

SHOWN = 3  # number of samples that the report shows
MOST_CLASSES = 100
FEWEST_CLASSES = 8  # number of classes that a report shows at least, if a set has as many
# The whole report is one event. It must be shorter than 64 kB, because programs that need only the
# latest events of a run read the last 64 kB.
MOST_CHARACTERS = 1200  # maximum number of characters of a sample
MOST_PARTS = 12


def describe(task: Task, folder: Path, earlier: Iterable[int] = ()) -> dict[str, Any]:
    """Return the report on the token samples in a folder.

    This function also writes the hashes of the training rows into the folder, see `trained_model`.
    A document is a token sequence that the model reads as a whole. Several documents may be packed
    into one sample.

    Args:
        earlier: hashes of the rows that the model was already trained on.

    Returns:
        A dictionary with three fields:
        - `columns`: column names by their purpose.
        - `sets`: a dictionary for each set, see below.
        - `samples`: the first samples. Each is a list of documents with a `label` and `parts`. Each
          part is a pair: its text, and True if the model is trained to predict this text.

        The fields of a set are:
        - `set`: its name.
        - `rows`, `samples` and `documents`: number of each; `rows` is null if it is unknown.
        - `median` and `longest`: median and maximum length of the documents, in tokens.
        - `limit`: maximum number of tokens in a document.
        - `cut`: number of truncated texts.
        - `left_out`: number of skipped rows.
        - `class_count` and `classes`: number of classes, and the most frequent classes.
        - `columns`: the columns of a training set by their purpose, if there are several data sets.
        - `duplicates`: for a validation set, the number of its documents on which this or an
          earlier run trains the model; null if unknown.
    """
    found = {path.name: Samples(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    order = [data_set.name for data_set in task.recipe.data_sets]
    names = sorted(
        found, key=lambda name: (not is_train(name), order.index(data_set_of(name, order)))
    )
    trained = [name for name in names if is_train(name)]
    several = len(task.recipe.data_sets) > 1
    known = RowHashes(earlier)
    has_earlier = len(known) > 0
    most_classes = max(MOST_CLASSES // len(names), FEWEST_CLASSES) if several else MOST_CLASSES
    sets = [_set(task, name, found[name], known, most_classes) for name in names]
    if not has_earlier and not 0 < len(trained) < len(names):
        for data_set in sets:
            data_set["duplicates"] = None
    for data_set in sets if several else ():
        name = data_set_of(data_set["set"], task.uses_of)
        if name in task.uses_of and data_set["set"] in (trained or names):
            data_set["columns"] = {use: [*found] for use, found in task.uses_of[name].items()}
    if trained and len(known):
        write_rows(folder / ROWS, known)
    return {
        "columns": {use: list(columns) for use, columns in task.uses.items()},
        "sets": sets,
        "samples": [
            sample
            for name in (trained or names[:1])
            for sample in _samples(task, found, name, several)
        ],
    }


def _samples(
    task: Task, found: Mapping[str, Samples], name: str, several: bool
) -> list[list[dict[str, Any]]]:
    """Return the first samples of a set; if there are several data sets, only one short sample."""
    if not several:
        return _shown(task, found[name], SHOWN, MOST_CHARACTERS)
    shown = _shown(task, found[name], 1, MOST_CHARACTERS // len(found))
    return [[{**document, "set": name} for document in sample] for sample in shown]


def _set(
    task: Task, name: str, samples: Samples, known: RowHashes, most_classes: int
) -> dict[str, Any]:
    """Return the report on one set.

    Args:
        known: hashes of training documents; if the set is a training set, this function adds the
            hashes of its documents.
    """
    about, duplicates, trains = samples.about, 0, is_train(name)
    lengths: Counter[int] = Counter()  # number of documents of each length
    classes: Counter[str] = Counter()
    if task.compares:
        for sample in samples:
            for document in task.documents(sample, samples):
                lengths[len(document.ids)] += 1
                classes.update(document.classes)
                mark = hash_of(document.ids)
                if trains:
                    known.add(mark)
                duplicates += not trains and mark in known
    else:
        lengths = Counter(samples.lengths("input_ids"))
    return {
        "set": name,
        "rows": about.get("rows"),
        "samples": len(samples),
        "documents": lengths.total(),
        "median": round(_median(lengths)),
        "longest": max(lengths),
        "limit": task.limit,
        "cut": about.get("cut", 0),
        "left_out": about.get("left_out", 0),
        "classes": dict(classes.most_common(most_classes)),
        "class_count": len(classes),
        "duplicates": duplicates if task.compares and not trains else None,
    }


def _median(counts: Mapping[int, int]) -> float:
    """Return the median of numbers that are given by their counts.

    Args:
        counts: number of occurrences, by number.
    """
    total, below = sum(counts.values()), 0
    middle: list[int] = []  # the two numbers in the middle, which may be equal
    for number in sorted(counts):
        below += counts[number]
        middle += [number] * ((below > (total - 1) // 2) + (below > total // 2) - len(middle))
    return sum(middle[:2]) / 2


def _shown(task: Task, samples: Samples, count: int, characters: int) -> list[list[dict[str, Any]]]:
    shown: list[list[dict[str, Any]]] = []
    for sample in islice(samples, count):
        documents = task.documents(sample, samples)
        groups = [[document] for document in documents] if task.packs else [documents]
        for group in groups:
            most = characters // len(group)
            shown.append([_document(task, document, most) for document in group[:MOST_PARTS]])
    return shown[:count]


def _document(task: Task, document: Document, most: int) -> dict[str, Any]:
    targets, before, parts = set(document.targets), "", []
    for is_target, numbers in groupby(range(len(document.ids)), targets.__contains__):
        *_, last = numbers
        # decode the whole prefix, because a token's text depends on the tokens before it
        whole = str(task.tokenizer.decode(document.ids[: last + 1]))
        parts.append((whole[len(before) :], is_target))
        before = whole
    if len(parts) > MOST_PARTS:
        parts = [*parts[: MOST_PARTS - 1], ("...", False)]
    limit = max(most // len(parts), 40) if parts else 0
    shown = [[_shortened(text, limit), is_target] for text, is_target in parts]
    return {"label": document.label, "parts": shown}


def _shortened(text: str, most: int) -> str:
    """Return `text` with at most `most` characters; the middle of a longer text is removed."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"
