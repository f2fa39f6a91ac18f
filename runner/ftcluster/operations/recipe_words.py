"""The recipe that a command line asks for, and its files on this machine and on the hosts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ftcluster.cluster.facts import ClusterFacts
from ftcluster.errors import InputError, UsageError
from ftcluster.recipe.data_columns import header
from ftcluster.recipe.inputs import copy_name
from ftcluster.recipe.recipe import RECIPES, known_recipes, load_recipe
from ftcluster_common.given_files import read_json
from ftcluster_common.job import Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.trained_model import FILE, read_trained

DEFAULT_RECIPE = "quickstart"
# fields of a recipe that may name one of this machine
FOLDERS = ("data", "model", "tokenizer", "teacher")
# by the end of transformers' names of classes
OF_CLASSES = {
    "ForSequenceClassification": ("classify", "glue", "rerank"),
    "ForTokenClassification": ("ner",),
    "ForQuestionAnswering": ("squad",),
    "ForMaskedLM": ("mlm",),
    "ForConditionalGeneration": ("seq2seq",),
    "ForCausalLM": ("sft", "clm"),
    "Model": ("embed",),
}
CONFIG = "config.json"
COLUMNS = ("_column", "_columns")  # end the names of fields with columns


def split_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """The recipe and its overrides.

    Raises:
        UsageError: there are several recipes.
    """
    recipes = [word for word in words if "=" not in word]
    if len(recipes) > 1:
        raise UsageError(f"one recipe at a time, not {', '.join(recipes)}")
    return recipes[0] if recipes else DEFAULT_RECIPE, [word for word in words if "=" in word]


def _keys(overrides: Sequence[str]) -> list[str]:
    return [override.partition("=")[0] for override in overrides]


def training_recipe(
    words: Sequence[str],
    data: str | None,
    model: str | None,
    remembered: Sequence[str] = (),
    chosen: Sequence[str] = (),
) -> Recipe:
    """The recipe that words of the command line ask for, its folders by absolute paths.

    Args:
        words: a recipe, a known one or a file, and `key=value` of its fields.
        data, model: a folder or a name, instead of the recipe's.
        remembered: `key=value` that words may override.
        chosen: `key=value` of a command that tries settings, which override words.

    Raises:
        UsageError: there are several recipes.
        RecipeError: the recipe is unknown or not valid.
    """
    recipe_name, overrides = split_words(words)
    flags = []
    if data is not None:
        flags.append(f"data={json.dumps(data)}")
        if not any(key in ("data_config", "dataset_config_name") for key in _keys(overrides)):
            flags.append("data_config=null")  # the recipe's is a configuration of its own data set
    if model is not None:
        flags += [f"model={json.dumps(model)}"]
    recipe = load_recipe(recipe_name, remembered, [*flags, *overrides], chosen)
    return with_folders(recipe, lambda _, folder: str(Path(folder).absolute()))


def trained_recipe(
    words: Sequence[str], data: str | None, model: str, purpose: Purpose
) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe for a trained model, which reads data as it was trained to, and a note of that.

    A model that ftcluster has trained has its recipe's name, task and columns in a file of its
    folder. Columns that data of this machine do not have are found as in a training.

    Args, Raises: as in `training_recipe`.
    """
    trained, named = read_trained(Path(model)), any("=" not in word for word in words)
    if not trained and not named:
        raise UsageError(
            f"{model} does not say what it was trained for (it has no {FILE}): name a recipe",
            f"{' or '.join(recipes_for(Path(model)))}, with --data PATH where it is not the "
            "recipe's own",
        )
    if trained and not named:
        name = trained["recipe"]
        is_known = name in known_recipes()
        if not is_known and data is None and not any(word.startswith("data=") for word in words):
            raise UsageError("name the data: --data PATH", f"or recipe {name}, which has them")
        words = [name if is_known else RECIPES.get(trained["task"], DEFAULT_RECIPE), *words]
    plain = training_recipe(words, data, model)
    if trained.get("task") != plain.task:  # as one of no other task, or of another program
        return for_trained_model(plain), ()
    columns = header(plain, purpose)
    settings = [
        f"{name}={json.dumps(value)}"
        for name, value in trained["options"].items()
        if value not in (None, [])
        and not (columns and name.endswith(COLUMNS) and _no_column(value, columns))
    ]
    recipe = training_recipe(words, data, model, settings)
    before, after = asdict(plain.options), asdict(recipe.options)
    changed = [f"{name}={_shown(now)}" for name, now in after.items() if now != before[name]]
    note = f"as the model was trained ({Path(model) / FILE}): {' '.join(changed)}"
    return for_trained_model(recipe), (note,) if changed else ()


def recipes_for(model: Path) -> Sequence[str]:
    """The recipes that may fit a model's folder, by the class that its config.json names."""
    try:
        names = [str(name) for name in read_json(model / CONFIG)["architectures"]]
    except (ValueError, KeyError, TypeError):
        names = []
    fit = [ours for end, ours in OF_CLASSES.items() if any(name.endswith(end) for name in names)]
    return fit[0] if fit else [name for name in known_recipes() if name != DEFAULT_RECIPE]


def _no_column(named: Any, columns: Sequence[str]) -> bool:
    """Whether data have none of the columns that a field names."""
    return not {*([named] if isinstance(named, str) else named)} & {*columns}


def _shown(value: Any) -> str:
    """A field's value as one writes it on a command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def for_trained_model(recipe: Recipe) -> Recipe:
    """The recipe for a model that is trained already, with its own configuration and tokenizer."""
    training = replace(recipe.training, use_ipex=False, shard_optimizer=False)
    return replace(
        recipe, training=training, from_scratch=False, config_overrides={}, tokenizer=None
    )


def on_the_hosts(recipe: Recipe, facts: ClusterFacts) -> tuple[Recipe, tuple[tuple[str, str], ...]]:
    """The recipe with the hosts' paths for folders of this machine, and the folders to copy.

    Raises:
        InputError: they have what is not copied; names all.
    """
    if all(host.connection == "local" for host in facts.hosts):  # also the nodes of a Slurm job
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

    there = with_folders(recipe, copied)
    if problems:
        raise InputError("\n".join(problems))
    return there, tuple(copies.items())


def with_folders(recipe: Recipe, rename: Callable[[str, str], str]) -> Recipe:
    """The recipe with folders of this machine renamed by `rename(field, folder)`."""
    values: dict[str, Any] = {field: getattr(recipe, field) for field in FOLDERS}
    values["resume_from_checkpoint"] = recipe.training.resume_from_checkpoint
    renamed = {
        field: rename(field, value)
        for field, value in values.items()
        if isinstance(value, str) and Path(value).exists()
    }
    checkpoint = renamed.pop("resume_from_checkpoint", values["resume_from_checkpoint"])
    training = replace(recipe.training, resume_from_checkpoint=checkpoint)
    return replace(recipe, training=training, **renamed)  # type: ignore[arg-type]
