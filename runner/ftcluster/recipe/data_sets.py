"""Read the data sets of a recipe whose field `data` is a list."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftcluster.recipe.names import nearest
from ftcluster.recipe.schema import Key
from ftcluster.text.printable import is_plain
from ftcluster_common.data.data_sets import NAME, DataSet, with_names
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.spec import Contradiction

MOST_SETS = 64
SETTINGS = (
    "path",
    "name",
    "weight",
    "data_config",
)  # fields of an entry, besides fields of the task
ENTRY = "must be a path, or a mapping such as {path: a.csv, weight: 2}"


def read_data_sets(
    entries: Sequence[Any], fields: Mapping[str, Key]
) -> tuple[tuple[DataSet, ...], list[str]]:
    """Return the data sets of a list, and the problems of its entries.

    Args:
        entries: a path or a mapping for each data set.
        fields: the task's fields that an entry may set, by name.

    >>> read_data_sets(["a.csv", {"path": "b.csv", "weight": 2}], {})[0][1]
    DataSet(path='b.csv', name='b', weight=2.0, data_config=None, fields={})
    >>> read_data_sets(["a.csv", {"path": "b.csv", "weights": 2}], {})[1]
    ["data, entry 2 (b.csv): unknown key 'weights'; did you mean 'weight'?"]
    """
    data_sets, problems = [], []
    for number, entry in enumerate(entries, start=1):
        settings = {"path": entry} if isinstance(entry, str) else entry
        where = f"data, entry {number}"
        if not isinstance(settings, dict) or not isinstance(settings.get("path"), str):
            problems.append(f"{where} {ENTRY}, got {entry!r:.80}")
            continue
        where += f" ({settings['path']:.80})"
        data_set, wrong = _read_entry(settings, fields)
        data_sets.append(data_set)
        problems += [f"{where}: {problem}" for problem in wrong]
    named = with_names(data_sets)
    names = [data_set.name for data_set in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problems.append(
            f"data: each entry needs its own name, but several entries use {', '.join(twice)}"
        )
    if len(entries) > MOST_SETS:
        problems.append(f"data: at most {MOST_SETS} data sets are allowed, got {len(entries)}")
    return named, problems


def _read_entry(
    settings: Mapping[str, Any], fields: Mapping[str, Key]
) -> tuple[DataSet, list[str]]:
    """Return the data set of an entry, and the entry's problems."""
    values: dict[str, Any] = {}
    problems = []
    for key, value in settings.items():
        if key in fields:
            try:
                values[key] = fields[key].convert(value)
            except ValueError as error:
                problems.append(str(error))
        elif key not in SETTINGS:
            guess = nearest(key, {*SETTINGS, *fields})
            advice = f"did you mean '{guess}'?" if guess else f"known: {', '.join(_keys(fields))}"
            problems.append(f"unknown key '{key}'; {advice}")
    name, weight, config = (settings.get(key) for key in SETTINGS[1:])
    if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
        problems.append(f"'name' may contain only letters, digits, _ and -, got {name!r:.80}")
        name = None
    if weight is not None and not _is_weight(weight):
        problems.append(f"'weight' must be a number greater than 0, got {weight!r:.80}")
        weight = None
    if config is not None and not (isinstance(config, str) and is_plain(config)):
        problems.append(f"'data_config' must be a string, got {config!r:.80}")
        config = None
    weight = None if weight is None else float(weight)
    return DataSet(str(settings["path"]), name or "", weight, config, values), problems


def _keys(fields: Mapping[str, Key]) -> Iterator[str]:
    yield from SETTINGS
    yield from fields


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def contradictions(recipe: Recipe) -> Iterator[Contradiction]:
    """Yield contradictions between the data sets of a recipe with several data sets."""
    parts = recipe.by_set()
    if len(parts) < 2:
        return
    if not recipe.spec.mixes_data:
        yield "data", f"{recipe.task} trains on one data set, got {len(parts)}"
    weighted = [data_set.name for data_set in recipe.data_sets if data_set.weight is not None]
    if weighted and recipe.data_mixing == "equal":
        yield (
            "data_mixing",
            f"data_mixing: equal contradicts the weight of data set {weighted[0]}; remove one of "
            "the two",
        )
    reported = {text for _, text in recipe.spec.contradictions(recipe.options)}
    for data_set, part in zip(recipe.data_sets, parts, strict=True):
        for field, text in recipe.spec.contradictions(part.options):
            if text not in reported:
                yield "data", f"data set {data_set.name}: {field}: {text}"
    if len({recipe.spec.needs_teacher(part.options) for part in parts}) > 1:
        yield "data", "the losses mse and cosine_distance cannot be mixed with other losses"
