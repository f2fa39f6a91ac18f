"""Read training recipes. A recipe is a YAML file that is checked completely before a run starts.

A single error lists all problems of a recipe, with file, line and allowed values.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

from ftcluster.errors import RecipeError
from ftcluster.paths import bundled
from ftcluster.recipe import data_sets, training_arguments
from ftcluster.recipe.data_sets import SETTINGS, read_data_sets
from ftcluster.recipe.names import OTHER_VALUES, meaning_of, nearest
from ftcluster.recipe.overrides import read_override
from ftcluster.recipe.schema import Key, keys_of
from ftcluster.recipe.training_arguments import OtherNames, with_own_names
from ftcluster.recipe.unsupported import TRL_TRAINERS, UNSUPPORTED
from ftcluster.recipe.yaml_loader import read_keys, read_value
from ftcluster.text.plural import counted
from ftcluster.text.printable import is_plain
from ftcluster_common.data.data_files import VALIDATION
from ftcluster_common.data.data_sets import is_test, split_name
from ftcluster_common.given_files import GivenFileError, read_given
from ftcluster_common.models.model_package import PACKAGE, read_model_package
from ftcluster_common.protocol.job import recipe_of
from ftcluster_common.recipe import BY_TYPE, GENERATED, NEW_TOKENS, Recipe, Training
from ftcluster_common.tasks.registry import DEFAULT_TASK, TASKS, AnyTask, task_names
from ftcluster_common.tasks.spec import Contradiction, adapter_contradictions

# name of the recipe for arbitrary data, by task
RECIPES = {name: spec.recipe for name, spec in TASKS.items() if spec.recipe}
SECTIONS = ("training", "config_overrides")
MAX_RECIPE_BYTES = 1 << 20
MOST_SHOWN = 10  # maximum number of folds in a message
MAX_PATH_BYTES = 4096  # PATH_MAX
NOT_TEXT = "contains line breaks or control characters"
OWN_TASK = "for a task of your own, pass its file or folder: --task FILE.py or --task DIR/"
Given = tuple[str, Any, str]  # a key, its value, and the place where it is set
# a function that gets a recipe's values, and returns values for unset fields and contradictions
Complete = Callable[[Mapping[str, Any], AnyTask], tuple[Mapping[str, Any], list[Contradiction]]]


def unchanged(_: Mapping[str, Any], __: AnyTask) -> tuple[Mapping[str, Any], list[Contradiction]]:
    """Return no values for unset fields, and no contradictions."""
    return {}, []


def known_recipes() -> dict[str, Path]:
    """Return the paths of the recipes that come with the package, by name."""
    return {path.stem: path for path in sorted(bundled("recipes").glob("*.yml"))}


# how to set a required field on the command line
GIVEN_BY = {
    "data": "pass a file, a folder, or OWNER/NAME on the Hub with --data",
    "model": "pass a folder, or OWNER/NAME on the Hub with --model",
}


def find_recipe(name: str) -> Path:
    """Return the file of a recipe by its name or path.

    Raises:
        RecipeError: there is no such recipe (the message suggests the nearest name), or the file is
            a script.
    """
    recipes = known_recipes()
    if name in recipes:
        return recipes[name]
    path = Path(name)
    if path.suffix == ".py":
        raise RecipeError(f"{name} is a script, not a recipe", f"ftcluster run -- {name}")
    if path.suffix in (".yml", ".yaml") or "/" in name:
        if path.exists():  # `recipe_text` reports a path that is not a file
            return path
        raise RecipeError(
            f"recipe file {name} does not exist in {path.parent.absolute()}",
            "start from a shipped recipe: ftcluster recipes classify > my-recipe.yml; to list the "
            "shipped recipes: ftcluster recipes",
        )
    if trainer := TRL_TRAINERS.get(name.lower()):
        raise RecipeError(
            f"unknown recipe '{name}'",
            f"recipes for language models: {', '.join(_of_generators())}; a script with TRL's "
            f"{trainer} runs unchanged: ftcluster run --requirements requirements.txt -- SCRIPT; "
            "to write an example script: ftcluster examples sft_trl --to .",
        )
    beside = [file for file in (f"{name}.yml", f"{name}.yaml") if Path(file).is_file()]
    task = difflib.get_close_matches(name.lower().replace("_", "-"), RECIPES, n=1)
    guesses = beside or difflib.get_close_matches(name, recipes, n=1) or [RECIPES[t] for t in task]
    guess = f"did you mean {guesses[0]}? " if guesses else ""
    raise RecipeError(
        f"unknown recipe '{name}'",
        f"{guess}known recipes: {', '.join(recipes)}; for anything else, run a script of your own: "
        "ftcluster run",
    )


def _of_generators() -> list[str]:
    """Return the recipes that train language models."""
    return [RECIPES[task] for task, spec in TASKS.items() if spec.generates and task in RECIPES]


def load_recipe(
    name: str,
    *overrides: Sequence[str],
    remembered: Sequence[Given] = (),
    metrics: Sequence[str] = (),
    complete: Complete = unchanged,
) -> Recipe:
    """Read a recipe by name or path and apply `key=value` overrides (`training.seed=7`).

    Args:
        name: name of a shipped recipe, or a path.
        overrides: groups of `key=value` arguments; later groups override earlier groups.
        remembered: values from a trained model. They override the file, and `overrides` override
            them.
        metrics: names of the user's own metrics.
        complete: function that returns values for unset fields that files on this machine
            determine, and contradictions with these files.

    Raises:
        RecipeError: keys are unknown or values are invalid; the message lists all of them with file
            and line.
    """
    path = find_recipe(name)
    text = recipe_text(path)
    return parse_recipe(
        text, str(path), *overrides, remembered=remembered, metrics=metrics, complete=complete
    )


def recipe_text(path: Path) -> str:
    """Return the text of a recipe's file.

    Raises:
        RecipeError: the path is not a file, or the file is too large or not text.
    """
    try:
        return read_given(path, MAX_RECIPE_BYTES)
    except GivenFileError as error:
        raise RecipeError(str(error)) from error


def parse_recipe(
    text: str,
    source: str,
    *overrides: Sequence[str],
    remembered: Sequence[Given] = (),
    metrics: Sequence[str] = (),
    complete: Complete = unchanged,
) -> Recipe:
    """Parse and check a recipe's text. This is a pure function, which `load_recipe` calls.

    Args:
        text: the recipe as YAML.
        source: name of the file, for messages; its stem is the recipe's name.
        overrides: groups of `key=value` arguments; later groups override earlier groups. The type
            of a field decides how its value is read. A group may set each key only once.
        remembered: see `load_recipe`.
        metrics: see `load_recipe`.
        complete: see `load_recipe`.

    Raises:
        RecipeError: the recipe is not valid, see `load_recipe`.
    """
    in_file, places = read_keys(text, source, SECTIONS)
    every = [override for group in overrides for override in group]
    task = _task_of(every) or in_file.get("task") or DEFAULT_TASK
    schema = schema_of(task)
    overridden: list[Given] = []
    problems: list[str] = []
    for group in overrides:
        given, misread = _read(group, schema)
        meant = list(_meant(given, schema))
        overridden += meant
        problems += [*misread, *_given_twice(meant)]
    values: dict[str, Any] = {}
    lines: dict[str, str] = {}
    by_line = sorted(in_file, key=lambda key: int(places[key].rpartition(":")[2]))
    of_file = [(key, in_file[key], places[key]) for key in by_line]
    for key, value, where in _meant(of_file, schema):
        if key in values:
            problems.append(f"{where}: '{key}' is set twice, first at {lines[key]}")
        values[key], lines[key] = value, where
    problems += _without_effect(overridden, values)
    for key, value, where in (*remembered, *overridden):
        values[key], lines[key] = value, where
    accepted: dict[str, Any] = {}
    for key, value in values.items():
        try:
            accepted[key] = _accept(key, value, schema)
        except ValueError as error:
            own = f"; {OWN_TASK}" if key == "task" and isinstance(value, str) else ""
            problems.append(f"{lines[key]}: {error}{own}")
    training, contradictions = with_own_names(_section("training.", accepted))
    problems += [f"{lines[f'training.{key}']}: {problem}" for key, problem in contradictions]
    accepted = {**_spec_of(task).implied(accepted), **accepted}
    completed, contradictions = complete(accepted, _spec_of(task))
    problems += [f"{lines.get(key, source)}: {problem}" for key, problem in contradictions]
    accepted |= {name: value for name, value in completed.items() if name not in accepted}
    problems += [
        f"{source}: '{key.name}' is missing: {GIVEN_BY.get(key.name, key.meaning)}"
        for key in schema.values()
        if key.required and key.name not in {*values, *accepted}
    ]
    if isinstance(accepted.get("data"), tuple):
        fields = {name: schema[name] for name in _spec_of(task).fields_of_a_set}
        accepted["data"], wrong = read_data_sets(accepted["data"], fields)
        problems += [f"{lines['data']}: {problem}" for problem in wrong]
    if not problems:
        recipe = _build(Path(source).stem, accepted, training)
        contradicting = contradictions_of(recipe, training, metrics)
        problems = [f"{lines.get(key, source)}: {what}" for key, what in contradicting]
    if problems:
        typed = all(problem.startswith("'") for problem in problems)  # only overrides have problems
        where = f"the overrides of recipe {Path(source).stem}" if typed else f"recipe {source}"
        count = counted(len(problems), "problem")
        raise RecipeError(f"{count} in {where}\n  " + "\n  ".join(problems))
    return recipe


def contradictions_of(
    recipe: Recipe, given: Mapping[str, Any], metrics: Sequence[str] = ()
) -> list[Contradiction]:
    """Return the contradictions between values of a recipe that are valid individually.

    Args:
        given: names and values of the `training` fields that the recipe sets.
        metrics: names of the user's own metrics.
    """
    return [*_contradictions(recipe), *_of_training(recipe, given, metrics)]


def checked_recipe(data: Mapping[str, Any], metrics: Sequence[str] = ()) -> Recipe:
    """Read a recipe that a host returned, and check it in the same way as a local recipe.

    Args:
        data: the recipe in a run's job.json.
        metrics: names of the user's own metrics.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: the recipe is not valid; the message
            gives the reason.
    """
    recipe = recipe_of(data)
    if isinstance(data["data"], list):
        of_task = {key.name: key for key in keys_of(recipe.spec.fields)}
        fields = {name: of_task[name] for name in recipe.spec.fields_of_a_set}
        entries = [
            {name: entry[name] for name in SETTINGS} | dict(entry["fields"])
            for entry in data["data"]
        ]
        _, wrong = read_data_sets(entries, fields)
        if wrong:
            raise ValueError("; ".join(wrong))
    sections = {
        "": (keys_of(Recipe, leave_out=("options", "training")), data),
        "training.": (keys_of(Training, "training."), data["training"]),
        "options.": (keys_of(TASKS[recipe.task].fields, "options."), data["options"]),
    }
    given: dict[str, Any] = {}  # values that differ from the default
    for section, (keys, values) in sections.items():
        for key in keys:
            name = key.name.removeprefix(section)
            default = list(key.default) if isinstance(key.default, tuple) else key.default
            if name in values and values[name] != default:
                given[key.name] = key.convert(values[name])
    training = _section("training.", given)
    if contradicting := contradictions_of(recipe, training, metrics):
        raise ValueError("; ".join(f"{key}: {what}" for key, what in contradicting))
    return recipe


def schema_of(task: Any) -> dict[str, Key]:
    """Return all keys that a recipe for a task can contain, by name.

    For an unknown task, return the keys of the default task.
    """
    keys = (
        *map(_with_tasks, keys_of(Recipe, leave_out=("name", "options", *SECTIONS))),
        *keys_of(_spec_of(task).fields),
        *keys_of(Training, "training."),
        *keys_of(OtherNames, "training."),
    )
    return {key.name: key for key in keys}


def _spec_of(task: Any) -> AnyTask:
    """Return a task by its name; for an unknown name, the default task."""
    return TASKS[task if isinstance(task, str) and task in TASKS else DEFAULT_TASK]


def _with_tasks(key: Key) -> Key:
    """Return the key unchanged, except that the key `task` gets the names of all tasks."""
    return replace(key, kind=Literal[task_names()]) if key.name == "task" else key


def all_fields() -> dict[str, Key]:
    """Return the recipe keys of all tasks, by name.

    If a field has different meanings in different tasks, its description gives each meaning after
    the names of its tasks.
    """
    fields: dict[str, Key] = {}
    tasks: dict[str, dict[str, list[str]]] = {}  # tasks of each field by its description
    for task in TASKS:
        for name, key in schema_of(task).items():
            fields[name] = key
            tasks.setdefault(name, {}).setdefault(key.description, []).append(task)
    return {name: replace(key, description=_by_task(tasks[name])) for name, key in fields.items()}


def _by_task(tasks: Mapping[str, Sequence[str]]) -> str:
    """Return a field's description. If it has several, put the tasks before each description."""
    if len(tasks) == 1:
        return next(iter(tasks))
    return " ".join(f"{', '.join(names)}: {description}" for description, names in tasks.items())


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of recipe files, for editors.

    The schema does not contain the alternative names that recipes also accept, such as the argument
    names of Hugging Face's scripts.
    """
    fields: dict[str, dict[str, Any]] = {}
    for task in TASKS:  # two tasks may allow different values of a field
        for name, key in schema_of(task).items():
            known = fields.setdefault(name, key.json_schema)
            if key.json_schema not in (known, *known.get("anyOf", ())):
                fields[name] = {"anyOf": [*known.get("anyOf", [known]), key.json_schema]}
    descriptions = {name: key.description for name, key in all_fields().items()}
    top = {
        name: {**allowed, "description": descriptions[name]}
        for name, allowed in fields.items()
        if "." not in name
    }
    of_task = {name: {key.name for key in keys_of(spec.fields)} for name, spec in TASKS.items()}
    every = set().union(*of_task.values())
    training = {
        name.removeprefix("training."): {
            "anyOf": [allowed, {"type": "null"}],
            "description": descriptions[name],
        }
        for name, allowed in fields.items()
        if name.startswith("training.")
    }
    section = {"type": ["object", "null"], "properties": training, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a recipe of ftcluster",
        "type": "object",
        "properties": {
            **top,
            "training": section,
            "config_overrides": {"type": ["object", "null"]},
        },
        "required": ["model", "data"],
        "additionalProperties": False,
        "allOf": [
            {
                "if": {
                    "properties": {"task": {"const": task}},
                    **({} if task == DEFAULT_TASK else {"required": ["task"]}),
                },
                "then": {"properties": dict.fromkeys(sorted(every - of_task[task]), False)},
            }
            for task in TASKS
        ],
    }


def all_keys() -> dict[str, bool]:
    """Return the recipe keys of all tasks, each with True if its value is true or false."""
    return {name: key.kind is bool for name, key in all_fields().items()}


def _task_of(overrides: Sequence[str]) -> str | None:
    """Return the task that the last `task=` override names."""
    names = [override.removeprefix("task=") for override in overrides]
    tasks = [name for name, override in zip(names, overrides, strict=True) if name != override]
    return str(read_override(tasks[-1], str)).strip() if tasks else None


def _given_twice(overridden: Sequence[Given]) -> list[str]:
    """Return a problem for each key that two overrides set."""
    first: dict[str, str] = {}
    problems = []
    for key, _, where in overridden:
        if key in first:
            problems.append(f"{where}: '{key}' is set twice, first by {first[key]}")
        first.setdefault(key, where)
    return problems


def _read(overrides: Sequence[str], schema: Mapping[str, Key]) -> tuple[list[Given], list[str]]:
    """Read overrides; return the keys that they set, and their problems."""
    given: list[Given] = []
    problems = []
    for override in overrides:
        key, equals, raw = override.partition("=")
        where = f"'{override}'"
        if not equals or not key:
            problems.append(f"{where}: an override must have the form key=value")
            continue
        field = _field_of(key, schema)
        takes_blanks = field is not None and str in (field.kind, *get_args(field.kind))
        if not raw or (not raw.strip() and not takes_blanks):
            problems.append(f"{where}: the value is missing; {_instead_of_nothing(key, field)}")
        else:
            value = read_override(raw, field.kind) if field else read_value(raw)
            section = value if key in SECTIONS and isinstance(value, dict) else None
            pairs = {key: value} if section is None else {f"{key}.{n}": section[n] for n in section}
            given += [(name, one, where) for name, one in pairs.items()]
    return given, problems


def _instead_of_nothing(key: str, field: Key | None) -> str:
    """Return advice for an override without a value, `key=`."""
    kinds = (field.kind, *get_args(field.kind)) if field else ()
    advice = f"remove {key}"
    if field is None or field.name.startswith("training."):
        advice = f"{key}=null restores the default"
    elif NoneType in kinds:
        advice = f"{key}=null unsets it"
    return advice + f", and '{key}=\"\"' sets an empty string" * (str in kinds)


def _field_of(name: str, schema: Mapping[str, Key]) -> Key | None:
    """Return the field that a name or an alternative name means.

    Return None for unknown names, and for names whose values differ from the field's values.
    """
    if name.removeprefix("training.") in OTHER_VALUES:
        return None
    meant = meaning_of(name, None, schema)
    return schema.get(meant[0]) if meant else None


def _meant(given: Iterable[Given], schema: Mapping[str, Key]) -> Iterator[Given]:
    """Replace alternative names by the recipe's keys, and drop entries that change nothing."""
    for name, value, where in given:
        meant = meaning_of(name, value, schema)
        if meant:
            yield (*meant, where)


def _without_effect(overridden: Iterable[Given], in_file: Mapping[str, Any]) -> list[str]:
    """Return a problem if max_steps in the file would override epochs on the command line."""
    places = {key: where for key, _, where in overridden}
    epochs, steps = places.get("training.num_train_epochs"), in_file.get("training.max_steps")
    if not epochs or "training.max_steps" in places or not isinstance(steps, int) or steps < 1:
        return []
    return [
        f"{epochs}: the recipe sets max_steps ({steps}), which overrides epochs; add max_steps=-1"
    ]


def _accept(key: str, value: Any, schema: Mapping[str, Key]) -> Any:
    """Return the value of a key, converted to the type of its field.

    Raises:
        ValueError: there is no such key, or the value is not allowed. The message suggests a
            similar key or lists the allowed values.
    """
    section, dot, _ = key.partition(".")
    if dot and section == "config_overrides":
        if not isinstance(value, int | float | str):
            raise ValueError(f"'{key}' must be a number, a string, true or false, got {value!r}")
        return value
    if key in SECTIONS and value is None:  # an empty section
        return None
    if key not in schema:
        raise ValueError(_unknown_key(key, schema))
    if key == "data" and isinstance(value, dict):
        value = [value]
    if section == "training" and value is None:  # null removes the key, see _section
        return None
    return schema[key].convert(value)


def _unknown_key(key: str, schema: Mapping[str, Key]) -> str:
    if key in SECTIONS:
        return f"'{key}' is a section; set one of its keys: {key}.NAME=VALUE"
    name = key.removeprefix("training.")
    if name in UNSUPPORTED:
        return f"'{name}' is not supported: {UNSUPPORTED[name]}"
    others = [task for task, spec in TASKS.items() if key in {k.name for k in keys_of(spec.fields)}]
    if others:
        return f"'{key}' is a field only of other tasks: {', '.join(others)}"
    guess = nearest(key, schema)
    advice = f"did you mean '{guess}'?" if guess else "ftcluster recipes --fields lists the keys"
    return f"unknown key '{key}'; {advice}"


def _section(start: str, accepted: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section's values, except null, by their keys without the section's name."""
    return {
        key.removeprefix(start): value
        for key, value in accepted.items()
        if key.startswith(start) and value is not None
    }


def _build(name: str, accepted: Mapping[str, Any], training: Mapping[str, Any]) -> Recipe:
    """Build the recipe from its checked values.

    Args:
        name: name of the recipe.
        accepted: values of all keys.
        training: values of the section `training`, under the names of `Training`.
    """
    kind = TASKS[accepted.get("task", DEFAULT_TASK)].fields
    of_task = {key.name for key in keys_of(kind)}
    top = {
        key: value
        for key, value in accepted.items()
        if key not in {*of_task, *SECTIONS} and "." not in key
    }
    recipe = Recipe(
        name=name,
        options=kind(**{key: value for key, value in accepted.items() if key in of_task}),
        training=Training(**training),
        config_overrides=_section("config_overrides.", accepted),
        **top,
    )
    parts = recipe.by_set()
    return parts[0] if len(parts) == 1 else recipe


def _contradictions(recipe: Recipe) -> Iterator[Contradiction]:
    """Yield values that are valid individually, but not together."""
    parts, options = recipe.training.gradient_accumulation_steps, recipe.options
    if recipe.batch_size < parts and not recipe.training.per_device_train_batch_size:
        yield (
            "batch_size",
            f"a batch of {recipe.batch_size} samples cannot be divided into {parts} parts: "
            "gradient_accumulation_steps must be at most batch_size",
        )
    if recipe.model.startswith(BY_TYPE) and not recipe.from_scratch:
        yield "model", f"'{recipe.model}' has no weights; set from_scratch: true"
    if recipe.spec.needs_teacher(options) != (recipe.teacher is not None):
        what = "text-distillation and the embedding losses mse, cosine_distance and gist"
        yield (
            "teacher",
            f"{what} need a teacher (teacher=DIR, or a name on the Hub); otherwise remove teacher",
        )
    yield from _of_splits(recipe)
    yield from _of_new_tokens(recipe)
    for field in ("name", "data_config", "license"):
        if not is_plain(getattr(recipe, field) or ""):
            yield field, f"{getattr(recipe, field)[:200]!a} {NOT_TEXT}"
    sources = [("data", data_set.path) for data_set in recipe.data_sets]
    names = ("model", "tokenizer", "teacher", "adapter_base")
    sources += [(name, getattr(recipe, name) or "") for name in names]
    for field, value in sources:
        if problem := _not_a_source(value):
            yield field, f"{value[:200]!a} {problem}"
        elif value.startswith(PACKAGE) and field != "data":
            try:
                read_model_package(value)
            except ValueError as error:
                yield field, str(error)
    if recipe.task != DEFAULT_TASK and any(
        data_set.path.startswith(GENERATED) for data_set in recipe.data_sets
    ):
        yield "data", f"generated data are only for the task {DEFAULT_TASK}"
    yield from recipe.spec.tokenizer_contradictions(options, recipe.from_scratch, recipe.tokenizer)
    if recipe.lora_r is not None:
        if recipe.from_scratch:
            yield (
                "lora_r",
                "adapters on random weights learn nothing; remove lora_r to train all weights",
            )
        if recipe.training.shard_optimizer is True:
            yield (
                "training.shard_optimizer",
                "the optimizer state of adapters is too small to divide among ranks; remove "
                "shard_optimizer",
            )
    yield from adapter_contradictions(options)
    yield from recipe.spec.contradictions(options)
    yield from data_sets.contradictions(recipe)


def _of_new_tokens(recipe: Recipe) -> Iterator[Contradiction]:
    """Yield errors of the lists of new tokens."""
    listed: set[str] = set()
    for field in NEW_TOKENS:
        for token in getattr(recipe, field):
            shown = f"{token[:200]!a}"
            if not token:
                yield field, "an empty text cannot be a token; remove it"
            elif token != token.strip():
                yield (
                    field,
                    f"{shown} begins or ends with a blank, so it would not be found at the start "
                    "or the end of a text; write the token without this blank",
                )
            elif not is_plain(token):
                yield field, f"{shown} {NOT_TEXT}"
            elif token in listed:
                yield field, f"{shown} is listed twice in {' and '.join(NEW_TOKENS)}"
            listed.add(token)


def _of_splits(recipe: Recipe) -> Iterator[Contradiction]:
    """Yield errors of the fields that divide the rows into sets."""
    if recipe.test_split_percentage is not None and recipe.test_split_rows is not None:
        yield (
            "test_split_rows",
            "test_split_rows contradicts test_split_percentage; remove one of the two",
        )
    if recipe.group_column is not None and recipe.stratify_column is not None:
        yield (
            "stratify_column",
            "stratify_column contradicts group_column, because splits of whole groups rarely have "
            "equal proportions; remove one of the two",
        )
    evaluated = recipe.spec.validation_splits(recipe.options)
    yield from _of_folds(recipe, evaluated)
    if recipe.has_test and any(map(is_test, evaluated)):
        yield (
            "validation_splits",
            "a test set cannot also be a validation set; name another validation set",
        )
    of_rows = (
        "validation_split_rows",
        "test_split_rows",
        "group_column",
        "stratify_column",
        "folds",
    )
    for name in of_rows:
        if getattr(recipe, name) is not None and not recipe.spec.splits_rows:
            yield (
                name,
                f"{name} is not possible, because {recipe.task} packs texts into blocks, which can "
                "only be divided in percent; remove it",
            )


def _of_folds(recipe: Recipe, evaluated: Sequence[str]) -> Iterator[Contradiction]:
    """Yield errors of the fields of cross-validation.

    Args:
        evaluated: names of the validation sets.
    """
    if recipe.folds is None:
        if recipe.fold is not None:
            yield "fold", f"fold {recipe.fold} needs the number of folds, such as folds=5"
        return
    if recipe.fold is None:
        every = ",".join(str(number + 1) for number in range(min(recipe.folds, MOST_SHOWN)))
        yield (
            "folds",
            "folds needs the fold to validate on, such as fold=1; to train once for each fold: "
            f"ftcluster sweep fold={every}",
        )
    elif recipe.fold > recipe.folds:
        yield "fold", f"there is no fold {recipe.fold} of {recipe.folds}"
    if recipe.validation_split_rows is not None:
        yield (
            "validation_split_rows",
            "validation_split_rows contradicts folds, because folds have equal sizes; remove one "
            "of the two",
        )
    if tuple(evaluated) != (VALIDATION,):
        yield (
            "validation_splits",
            "validation_splits contradicts folds, because with folds the only validation set is a "
            "fold; remove one of the two",
        )


def _not_a_source(value: str) -> str:
    """Return why a string is neither a path nor a name on the Hub; "" if it may be either."""
    if not is_plain(value):
        return NOT_TEXT
    if value.startswith("-"):
        return "begins with -, like an option; write a folder as ./-NAME"
    return "is longer than 4,096 bytes" if len(value.encode()) > MAX_PATH_BYTES else ""


def _of_training(
    recipe: Recipe, given: Mapping[str, Any], own: Sequence[str]
) -> Iterator[Contradiction]:
    """Yield contradictions within the section `training`, and between the section and the task."""
    for name, problem in training_arguments.contradictions(recipe.training, given):
        yield f"training.{name}", problem
    options = recipe.options
    metric = (recipe.training.metric_for_best_model or "").removeprefix("eval_")
    metrics = tuple(
        dict.fromkeys(
            split_name(name, set_name)
            for set_name in ("", *(data_set.name for data_set in recipe.data_sets))
            for part in recipe.by_set()
            for name in (*recipe.spec.metric_names(part.options), *own)
        )
    )
    if metric and metric not in metrics:
        yield (
            "training.metric_for_best_model",
            f"'{metric}' is not a metric of this task; its metrics: {', '.join(sorted(metrics))}",
        )
    if recipe.training.eval_strategy == "no":
        for name in recipe.spec.tunes_on_validation(options):
            yield name, f"{name} needs evaluations, but training.eval_strategy is no"
    if recipe.spec.compares_batch(options):
        if recipe.training.sync == "local":
            yield (
                "training.sync",
                "each query is compared with the texts of all ranks, so the ranks must exchange "
                "embeddings in each step: set sync: step",
            )
        if "group_by_length" in given and recipe.training.group_by_length:
            yield (
                "training.group_by_length",
                "the rows of a batch are chosen at random, because its texts must differ; texts of "
                "similar length are computed together anyway, so remove group_by_length",
            )
    if recipe.training.label_smoothing_factor and not recipe.spec.smooths_labels(options):
        yield (
            "training.label_smoothing_factor",
            "label_smoothing_factor needs classes or tokens as labels, but this task has neither; "
            "remove it",
        )
