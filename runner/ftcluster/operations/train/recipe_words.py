"""Read the recipe that a command line requests, and map its files to paths on the hosts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.errors import InputError, RecipeError, UsageError
from ftcluster.recipe.data_columns import header
from ftcluster.recipe.inputs import copy_name
from ftcluster.recipe.recipe import (
    RECIPES,
    Given,
    all_fields,
    known_recipes,
    load_recipe,
    parse_recipe,
    unchanged,
)
from ftcluster.recipe.saved_adapters import with_adapters
from ftcluster.recipe.schema import in_recipe
from ftcluster.recipe.trained_fields import TrainedFields, run_hint, shortened, trained_fields
from ftcluster_common.data.data_sets import DataSet
from ftcluster_common.given_files import read_json
from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.tasks.spec import COLUMN_FIELDS
from ftcluster_common.user_code import NO_CODE, UserCode, current_task, declared_metrics

DEFAULT_RECIPE = "quickstart"
# requested data: None, a path, or several data sets, each a path or an entry as in a recipe
DataWords = str | Sequence[str | Mapping[str, Any]] | None
# fields of a recipe, besides its data, that may name a folder on this machine
FOLDERS = ("model", "tokenizer", "teacher", "adapter_base")
CONFIG = "config.json"


def split_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the recipe's name or file, and the `key=value` overrides.

    Raises:
        UsageError: several recipes are named.
    """
    recipes = [word for word in words if "=" not in word]
    if len(recipes) > 1:
        raise UsageError(_why_several(recipes))
    return recipes[0] if recipes else DEFAULT_RECIPE, [word for word in words if "=" in word]


def _why_several(recipes: Sequence[str]) -> str:
    """Return the error message for a command line that names several recipes."""
    fields = all_fields()
    without = [word for word in recipes if word in fields or f"training.{word}" in fields]
    if without and len(recipes) - len(without) <= 1:
        return "; ".join(f"{word} has no value: write {word}=VALUE" for word in without)
    return f"only one recipe can be named, got {', '.join(recipes)}"


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]


def training_recipe(
    words: Sequence[str],
    data: DataWords,
    model: str | None,
    remembered: Sequence[Given] = (),
    chosen: Sequence[str] = (),
    code: UserCode = NO_CODE,
    trains: bool = True,
) -> Recipe:
    """Return the recipe that a command line requests, with absolute paths for its folders.

    If `code` defines a task and `words` name no recipe, the task's defaults apply.

    Args:
        words: name or file of a recipe, and `key=value` arguments for its fields.
        data: folder or name that replaces the recipe's data; or several data sets; None for the
            recipe's data.
        model: folder or name that replaces the recipe's model; None for the recipe's model.
        remembered: values from a trained model for fields of the task; `words` override them.
        chosen: `key=value` arguments from a search (`sweep`, `tune`); they override `words`.
        code: the user's task and metrics files, as returned by `read_code`.
        trains: True to complete the recipe with the settings of the adapters in the model's folder.

    Raises:
        UsageError: several recipes are named, or the recipe does not fit the user's files.
        RecipeError: the recipe is unknown or not valid.
    """
    recipe_name, overrides = split_words(words)
    flags = []
    if data is not None:
        flags.append(f"data={json.dumps(data)}")
        if not any(key in ("data_config", "dataset_config_name") for key in _keys(overrides)):
            flags.append("data_config=null")  # the recipe's value is for the replaced data
    if model is not None:
        flags += [f"model={json.dumps(model)}"]
    settings, metrics = [*flags, *overrides], declared_metrics(code.metrics)
    complete = with_adapters if trains else unchanged
    user_task = current_task() if code.task else None
    if user_task and names_no_recipe(words):
        recipe = parse_recipe(
            f"task: {json.dumps(user_task.spec.name)}\n", user_task.file.name, settings, chosen,
            remembered=remembered, metrics=metrics, complete=complete,
        )  # fmt: skip
    else:
        recipe = load_recipe(
            recipe_name, settings, chosen, remembered=remembered, metrics=metrics, complete=complete
        )
    _check_code(recipe, code)
    return with_folders(recipe, lambda _, folder: str(Path(folder).absolute()))


def names_no_recipe(words: Sequence[str]) -> bool:
    """Return True if all `words` are `key=value` arguments, so that no argument names a recipe."""
    return all("=" in word for word in words)


def _check_code(recipe: Recipe, code: UserCode) -> None:
    """Check that the recipe fits the user's task and metrics files.

    Raises:
        UsageError: the recipe has a task other than the file's, or the metrics need reference
            values that the task does not have.
    """
    user_task = current_task() if code.task else None
    if user_task and recipe.task != user_task.spec.name:
        raise UsageError(
            f"{user_task.file.name} defines the task {user_task.spec.name}, but the recipe "
            f"{recipe.name} is for {recipe.task}",
            f"omit the recipe, or set its task: task={user_task.spec.name}",
        )
    if not code.metrics:
        return
    if not recipe.spec.has_references(recipe.options):
        raise UsageError(
            f"--metrics {code.metrics.name}: evaluations of {recipe.task} have no reference "
            "answers to compare predictions with",
            "omit --metrics",
        )
    measured = {*recipe.spec.metric_names(recipe.options)}
    if taken := [name for name in declared_metrics(code.metrics) if name in measured]:
        raise UsageError(
            f"--metrics {code.metrics.name}: {recipe.task} already computes the metric "
            f"{', '.join(taken)}",
            "rename the metric in your file",
        )


def trained_recipe(
    words: Sequence[str],
    data: DataWords,
    model: str,
    purpose: Purpose,
    code: UserCode = NO_CODE,
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe for using a trained model, and notes about the recipe.

    The recipe reads data in the same way as the model's training did. A file in the model's folder
    records the name, task and columns of the training's recipe. The file may come from a stranger,
    so its values apply only to fields of the task, and only if the user has not set them. If the
    data lack the training's columns, the columns are chosen as for a new training.

    See `training_recipe` for arguments and errors.
    """
    trained, notes = trained_fields(Path(model)), []
    user_task = current_task() if code.task else None
    if names_no_recipe(words) and not (user_task and trained.task in ("", user_task.spec.name)):
        name = _recipe_of(trained, model)
        has_data = data is not None or any(word.startswith("data=") for word in words)
        if name != trained.recipe and not has_data:
            raise UsageError(
                "the data are missing: pass --data PATH",
                "to use the data that the model was trained on, name its recipe: "
                f"{shortened(trained.recipe)}",
            )
        words = [name, *words]
        notes.append(f"using recipe {name}, as in the model's training ({trained.file})")
    plain = training_recipe(words, data, model, code=code, trains=False)
    if notes and data is None:
        paths = ", ".join(data_set.path for data_set in plain.data_sets)
        notes = [f"{notes[0]}: data={shortened(paths)}"]
    # the user requests another task, or another program trained the model
    if trained.task != plain.task:
        if trained.task:
            notes.append(
                f"the model was trained for {trained.task} ({trained.file}), but is used for "
                f"{plain.task}, so the settings of its training do not apply"
            )
        return for_trained_model(plain), tuple(notes)
    try:
        settings = _settings(trained, words, plain, purpose)
        recipe = training_recipe(words, data, model, settings, code=code, trains=False)
    except RecipeError as error:  # `plain` is valid, so the file's values are the cause
        raise RecipeError(
            f"values in {trained.file} contradict each other or the command line\n  "
            f"{error.message}",
            "set these fields on the command line, as KEY=VALUE, or correct the file",
        ) from error
    notes += [*_differences(trained, plain, recipe), trained.ignored_note]
    return for_trained_model(recipe), tuple(filter(None, notes))


def _recipe_of(trained: TrainedFields, model: str) -> str:
    """Return the name of the recipe that trained the model, or of a recipe for the model's task.

    Raises:
        UsageError: the model's folder does not record the task, or the task is unknown.
    """
    if trained.unknown_task:
        raise UsageError(
            f"{model} was trained for the task {trained.unknown_task}, which ftcluster does not "
            "know",
            "pass the file that defines the task: --task FILE.py",
        )
    if not trained.task:
        raise UsageError(
            f"{model} does not record what it was trained for (it contains no {trained.missing}): "
            "name a recipe",
            run_hint(Path(model))
            or f"{' or '.join(recipes_for(Path(model)))}, with --data PATH unless you want to use "
            "the recipe's own data",
        )
    if trained.recipe in known_recipes() and load_recipe(trained.recipe).task == trained.task:
        return trained.recipe
    return RECIPES[trained.task]


def _settings(
    trained: TrainedFields, words: Sequence[str], plain: Recipe, purpose: Purpose
) -> list[Given]:
    """Return the field values in the model's file, without names of columns that the data lack.

    If the user sets a field that determines other fields, the model's values of those other fields
    are skipped.
    """
    columns = header(plain.by_set()[0], purpose)
    names = {word.partition("=")[0] for word in split_words(words)[1]}
    sets = plain.spec.sets_fields
    typed = {field for name in names & sets.keys() for field in sets[name]}
    return [
        (name, value, str(trained.file))
        for name, value in trained.options.items()
        if name not in typed
        and not (columns and name.endswith(COLUMN_FIELDS) and _no_column(value, columns))
    ]


def _differences(trained: TrainedFields, plain: Recipe, recipe: Recipe) -> Iterator[str]:
    """Yield notes about fields whose values come from the model or differ from its training."""
    before, after = asdict(plain.options), asdict(recipe.options)
    if changed := [f"{name}={_shown(now)}" for name, now in after.items() if now != before[name]]:
        yield f"settings from the model's training ({trained.file}): {' '.join(changed)}"
    others = [
        f"{name}={_shown(after[name])} instead of {_shown(value)}"
        for name, value in trained.options.items()
        if _shown(after[name]) != _shown(value)
    ]
    if others:
        yield f"settings that differ from its training ({trained.file}): {'; '.join(others)}"


def recipes_for(model: Path) -> Sequence[str]:
    """Return recipes that may fit a model's folder, chosen by the model class in config.json."""
    try:
        names = [str(name) for name in read_json(model / CONFIG)["architectures"]]
    except (ValueError, KeyError, TypeError):
        names = []
    by_class = model_recipes()
    fit = [fits for end, fits in by_class.items() if any(name.endswith(end) for name in names)]
    return fit[0] if fit else [name for name in known_recipes() if name != DEFAULT_RECIPE]


def model_recipes() -> dict[str, tuple[str, ...]]:
    """Map suffixes of transformers' class names to names of recipes, the longest suffix first."""
    recipes: dict[str, tuple[str, ...]] = {}
    for spec in TASKS.values():
        for end, names in spec.model_recipes.items():
            recipes[end] = (*recipes.get(end, ()), *names)
    return dict(sorted(recipes.items(), key=lambda item: -len(item[0])))


def _no_column(named: Any, columns: Sequence[str]) -> bool:
    """Return True if the data have none of the columns that a field names."""
    return not {*([named] if isinstance(named, str) else named)} & {*columns}


def _shown(value: Any) -> str:
    """Return a field's value as a user would type it on a command line, shortened if it is long."""
    if isinstance(value, list):
        value = tuple(value)
    return shortened(in_recipe(value))


def for_trained_model(recipe: Recipe) -> Recipe:
    """Return the recipe without settings that a trained model determines or does not need.

    A trained model's folder contains its configuration and tokenizer.
    """
    training = replace(recipe.training, use_ipex=False, shard_optimizer=False)
    return replace(
        recipe, training=training, from_scratch=False, config_overrides={}, tokenizer=None
    )


def on_the_hosts(recipe: Recipe, facts: ClusterFacts) -> tuple[Recipe, tuple[tuple[str, str], ...]]:
    """Return the recipe with the hosts' paths of its local folders, and the folders to copy.

    Raises:
        InputError: folders contain files that cannot be copied; lists all such files.
    """
    if all(host.connection == "local" for host in facts.hosts):  # true for a Slurm job too
        return recipe, ()
    copies: dict[str, str] = {}
    problems: list[str] = []

    def copied(field: str, folder: str) -> str:
        path, kind = Path(folder), "data" if field == "data" else "models"
        if folder not in copies:
            try:
                copies[folder] = f"{facts.head.prefix}/{kind}/{copy_name(path)}"
            except InputError as error:
                problems.append(str(error))
                return folder
        return f"{copies[folder]}/{path.name}" if path.is_file() else copies[folder]

    on_hosts = with_folders(recipe, copied)
    if problems:
        raise InputError("\n".join(problems))
    return on_hosts, tuple(copies.items())


def with_folders(recipe: Recipe, rename: Callable[[str, str], str]) -> Recipe:
    """Return the recipe with each local folder replaced by `rename(field, folder)`.

    For the folders of data sets, `field` is `data`.
    """
    paths = [
        rename("data", data_set.path) if Path(data_set.path).exists() else data_set.path
        for data_set in recipe.data_sets
    ]
    values: dict[str, Any] = {field: getattr(recipe, field) for field in FOLDERS}
    values["resume_from_checkpoint"] = recipe.training.resume_from_checkpoint
    renamed = {
        field: rename(field, value)
        for field, value in values.items()
        if isinstance(value, str) and Path(value).exists()
    }
    checkpoint = renamed.pop("resume_from_checkpoint", values["resume_from_checkpoint"])
    data: str | tuple[DataSet, ...] = paths[0]
    if isinstance(recipe.data, tuple):
        pairs = zip(recipe.data, paths, strict=True)
        data = tuple(replace(data_set, path=path) for data_set, path in pairs)
    training = replace(recipe.training, resume_from_checkpoint=checkpoint)
    return replace(recipe, data=data, training=training, **renamed)  # type: ignore[arg-type]
