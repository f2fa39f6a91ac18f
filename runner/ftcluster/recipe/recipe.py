"""Training recipes: YAML files that are checked as a whole before anything runs.

Every error of a recipe is reported at once, with file and line, and with what is allowed.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcluster.errors import RecipeError
from ftcluster.paths import bundled
from ftcluster.recipe import tasks, training_arguments
from ftcluster.recipe.schema import Key, keys_of
from ftcluster.recipe.tasks import Contradiction, glue_defaults, metric_names
from ftcluster.recipe.training_arguments import OtherNames, with_own_names
from ftcluster.recipe.unsupported import UNSUPPORTED
from ftcluster.recipe.yaml_loader import read_keys, read_value
from ftcluster.text.plural import counted
from ftcluster_common.recipe import (
    BY_TYPE,
    DEFAULT_TASK,
    GENERATED,
    TASKS,
    CausalLm,
    QuestionAnswering,
    Recipe,
    TextClassification,
    Training,
)

SECTIONS = ("training", "config_overrides")


def known_recipes() -> dict[str, Path]:
    """The recipes that came with the package, by name."""
    return {path.stem: path for path in sorted(bundled("recipes").glob("*.yml"))}


def find_recipe(name: str) -> Path:
    """The file of a recipe given by name or path.

    Raises:
        RecipeError: there is none; lists the known ones and suggests the nearest.
    """
    known = known_recipes()
    if name in known:
        return known[name]
    path = Path(name)
    if path.suffix in (".yml", ".yaml") or "/" in name:
        if path.is_file():
            return path
        raise RecipeError(f"recipe file {name} does not exist")
    nearest = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {nearest[0]}? " if nearest else ""
    raise RecipeError(f"unknown recipe '{name}'", f"{guess}known recipes: {', '.join(known)}")


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by name or path and apply `key=value` overrides (`training.seed=7`).

    Raises:
        RecipeError: every unknown key, wrong type and impossible value, each with file and line.
    """
    path = find_recipe(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    return parse_recipe(text, str(path), overrides)


def parse_recipe(text: str, source: str, overrides: Sequence[str] = ()) -> Recipe:
    """The pure part of `load_recipe`: text in, Recipe out.

    Args:
        source: the file's name, for messages; its stem names the recipe.
        overrides: `key=value`, the value in YAML.

    Raises:
        RecipeError: as in `load_recipe`.
    """
    values, lines = read_keys(text, source, SECTIONS)
    problems = _apply(overrides, values, lines)
    schema = schema_of(values.get("task", DEFAULT_TASK))
    accepted: dict[str, Any] = {}
    for key, value in values.items():
        try:
            accepted[key] = _accept(key, value, schema)
        except ValueError as error:
            problems.append(f"{lines[key]}: {error}")
    training, contradictions = with_own_names(_section("training.", accepted))
    problems += [f"{lines[f'training.{key}']}: {said}" for key, said in contradictions]
    if accepted.get("glue_task"):
        accepted = {**glue_defaults(accepted["glue_task"]), **accepted}
    problems += [
        f"{source}: '{key.name}' is missing: {key.meaning}"
        for key in schema.values()
        if key.required and key.name not in {*values, *accepted}
    ]
    if not problems:
        recipe = _build(Path(source).stem, accepted, training)
        said = [*_contradictions(recipe), *_of_training(recipe, training)]
        problems = [f"{lines.get(key, source)}: {what}" for key, what in said]
    if problems:
        count = counted(len(problems), "problem")
        raise RecipeError(f"{count} in recipe {source}\n  " + "\n  ".join(problems))
    return recipe


def schema_of(task: Any) -> dict[str, Key]:
    """Every key of a recipe for this task; for an unknown task, those of the default."""
    kind = TASKS.get(task, TASKS[DEFAULT_TASK]) if isinstance(task, str) else TASKS[DEFAULT_TASK]
    keys = (
        *keys_of(Recipe, leave_out=("name", "options", *SECTIONS)),
        *keys_of(kind),
        *keys_of(Training, "training."),
        *keys_of(OtherNames, "training."),
    )
    return {key.name: key for key in keys}


def _apply(overrides: Sequence[str], values: dict[str, Any], lines: dict[str, str]) -> list[str]:
    """Apply overrides to the values of the file; returns the problems."""
    problems = []
    for override in overrides:
        key, equals, raw = override.partition("=")
        if not equals or not key:
            problems.append(f"'{override}': an override is written key=value")
            continue
        value = read_value(raw)
        given = {key: value}
        if key in SECTIONS and isinstance(value, dict):
            given = {f"{key}.{name}": one for name, one in value.items()}
        values.update(given)
        lines.update(dict.fromkeys(given, f"'{override}'"))
    return problems


def _accept(key: str, value: Any, schema: Mapping[str, Key]) -> Any:
    """The value of a key as its field's type.

    Raises:
        ValueError: there is no such key, or the value is not allowed; says what is.
    """
    section, dot, _ = key.partition(".")
    if dot and section == "config_overrides":
        if not isinstance(value, int | float | str):
            raise ValueError(f"'{key}' is a number, a text, true or false, not {value!r}")
        return value
    if key in SECTIONS and value is None:  # a section without any key
        return None
    if key not in schema:
        raise ValueError(_unknown_key(key, schema))
    if section == "training" and value is None:  # removes the key, see _section
        return None
    return schema[key].convert(value)


def _unknown_key(key: str, schema: Mapping[str, Key]) -> str:
    if key in SECTIONS:
        return f"'{key}' is a section, with keys of its own: {key}.NAME=VALUE"
    name = key.removeprefix("training.")
    if name in UNSUPPORTED:
        return f"'{key}' is not supported: {UNSUPPORTED[name]}"
    if f"training.{key}" in schema:
        return f"'{key}' belongs to the section training: training.{key}"
    if key.startswith("training."):
        allowed = sorted(name for name in schema if name.startswith("training."))
    else:
        allowed = [*sorted(name for name in schema if "." not in name), *SECTIONS]
    others = [task for task, kind in TASKS.items() if key in {k.name for k in keys_of(kind)}]
    nearest = difflib.get_close_matches(key, schema, n=1)
    guess = f"did you mean '{nearest[0]}'? " if nearest else ""
    if others:
        guess = f"it belongs to the task {others[0]}; "
    return f"unknown key '{key}'; {guess}allowed: {', '.join(allowed)}"


def _section(start: str, accepted: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a section without its name; null removes a key."""
    return {
        key.removeprefix(start): value
        for key, value in accepted.items()
        if key.startswith(start) and value is not None
    }


def _build(name: str, accepted: Mapping[str, Any], training: Mapping[str, Any]) -> Recipe:
    """The recipe from its checked keys, `training` without the names of transformers 5."""
    kind = TASKS[accepted.get("task", DEFAULT_TASK)]
    of_task = {key.name for key in keys_of(kind)}
    top = {
        key: value
        for key, value in accepted.items()
        if key not in {*of_task, *SECTIONS} and "." not in key
    }
    return Recipe(
        name=name,
        options=kind(**{key: value for key, value in accepted.items() if key in of_task}),
        training=Training(**training),
        config_overrides=_section("config_overrides.", accepted),
        **top,
    )


def _contradictions(recipe: Recipe) -> Iterator[Contradiction]:
    """Values that are valid by themselves, but not together."""
    parts, options = recipe.training.gradient_accumulation_steps, recipe.options
    if recipe.batch_size < parts:
        yield "batch_size", f"{recipe.batch_size} samples cannot be accumulated in {parts} parts"
    if recipe.model.startswith(BY_TYPE) and not recipe.from_scratch:
        yield "model", f"'{recipe.model}' has no weights: it needs from_scratch: true"
    if recipe.data.startswith(GENERATED) and recipe.task != DEFAULT_TASK:
        yield "data", f"generated data are for the task {DEFAULT_TASK}"
    if isinstance(options, CausalLm) and options.vocab_size is not None:
        if not recipe.from_scratch:
            yield "vocab_size", "it is for a tokenizer made from the data: from_scratch: true"
        if recipe.tokenizer:
            yield "vocab_size", f"the tokenizer {recipe.tokenizer} has its own vocabulary"
    yield from tasks.contradictions(options)


def _of_training(recipe: Recipe, given: Mapping[str, Any]) -> Iterator[Contradiction]:
    """The same for the section `training`, alone and with the task."""
    for name, said in training_arguments.contradictions(recipe.training, given):
        yield f"training.{name}", said
    options = recipe.options
    metric = (recipe.training.metric_for_best_model or "").removeprefix("eval_")
    known = metric_names(options)
    if metric and metric not in known:
        yield (
            "training.metric_for_best_model",
            f"'{metric}' is not a metric of this task: {', '.join(sorted(known))}",
        )
    no_classes = isinstance(options, QuestionAnswering) or (
        isinstance(options, TextClassification) and options.regression
    )
    if recipe.training.label_smoothing_factor and no_classes:
        yield (
            "training.label_smoothing_factor",
            "label_smoothing_factor needs classes or tokens as labels, and this task has neither",
        )
