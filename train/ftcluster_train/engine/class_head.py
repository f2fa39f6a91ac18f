"""Initial output layers of classifiers, if the pretrained model may have different classes."""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PretrainedConfig

from ftcluster_common.data.class_names import are_unnamed, few, match_names
from ftcluster_common.models.adapter_config import read_adapters
from ftcluster_common.models.trained_model import read_trained
from ftcluster_kernels.nf4 import Nf4Weight
from ftcluster_train.engine.models import mismatched_weights, new_weights, plain_config
from ftcluster_train.errors import TrainError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcluster_common.recipe import Recipe

OTHER_HEADS = re.compile(r"\w+For(\w*Classification|MultipleChoice|QuestionAnswering)")


@dataclass(frozen=True)
class ClassHead:
    """The initial output layer of a classifier.

    Attributes:
        rows: index of the pretrained row that each class of the training data starts with; None
            for a random row.
        outputs: class names of the pretrained model.
        notice: notice for the user, or "".
    """

    rows: tuple[int | None, ...]
    outputs: tuple[str, ...]
    notice: str = ""

    @property
    def is_kept(self) -> bool:
        """True if the model's output layer stays unchanged."""
        return list(self.rows) == [*range(len(self.outputs))]


def head_of(
    recipe: "Recipe", model: str, model_class: Any, settings: Mapping[str, Any], adapters: str = ""
) -> ClassHead | None:
    """Return the initial output layer for training; None if the model has no usable output layer.

    Args:
        model: folder of the model.
        model_class: transformers' AutoModelFor... class.
        settings: configuration fields for training, including the class names.
        adapters: folder of the adapters from which training continues, or "".
    """
    if recipe.from_scratch or "id2label" not in settings:
        return None
    trained, names = plain_config(model), [*map(str, settings["id2label"].values())]
    labels = trained.id2label
    outputs = [str(labels.get(n, f"LABEL_{n}")) for n in range(trained.num_labels)]
    if adapters and (saved := _outputs_of_adapters(Path(adapters), model_class, trained, outputs)):
        return choose_rows(recipe.model, saved, names, _is_number(settings))
    kind = model_class.__name__.removeprefix("AutoModel")
    classes = [str(name) for name in getattr(trained, "architectures", None) or ()]
    if any(name.endswith(kind) for name in classes):
        return choose_rows(recipe.model, outputs, names, _is_number(settings))
    others = [name for name in classes if OTHER_HEADS.fullmatch(name)]
    if not others:
        return None if classes or are_unnamed(outputs) else choose_rows(
            recipe.model, outputs, names, _is_number(settings)
        )  # fmt: skip
    notice = f"{recipe.model} is a {others[0]}, so the output layer is NEW and starts at random"
    return ClassHead((None,) * len(names), tuple(outputs), notice)


def _outputs_of_adapters(
    folder: Path, model_class: Any, config: PretrainedConfig, outputs: Sequence[str]
) -> Sequence[str]:
    """Return the class names of the output layer saved with adapters; () if there is none.

    Args:
        config: configuration of the base model.
        outputs: class names of the base model.
    """
    shapes = read_adapters(folder).weights
    counts = {shapes[name][0] for name in output_weights(model_class, config) & shapes.keys()}
    if len(counts) != 1:
        return ()
    [count] = counts
    classes = read_trained(folder).get("head", {}).get("classes", ())
    for names in (classes, outputs):
        if len(names) == count:
            return [str(name) for name in names]
    return [f"LABEL_{number}" for number in range(count)]


def _is_number(settings: Mapping[str, Any]) -> bool:
    return len(settings["id2label"]) == 1 and settings["id2label"][0] == "LABEL_0"


def choose_rows(
    model: str, outputs: Sequence[str], names: Sequence[str], is_number: bool = False
) -> ClassHead:
    """Choose the row of a pretrained output layer with which each class starts.

    Rows are matched by class name. If the model or the training data has no class names, and both
    have the same number of classes, rows are matched by index.

    Args:
        outputs: class names of the pretrained model.
        names: class names of the training data.
        is_number: True for regression: one output is trained to predict a number, not classes.

    >>> choose_rows("m", ["health", "money", "sport"], ["money", "sport", "travel"]).rows
    (1, 2, None)
    >>> choose_rows("m", ["LABEL_0", "LABEL_1"], ["bad", "good"]).rows
    (0, 1)
    """
    of_model, new = f"{model} has the classes {few(outputs)}", (None,) * len(names)
    at_random = "the output layer is NEW and starts at random"
    if is_number or len(outputs) == 1:
        if len(names) == len(outputs):
            return ClassHead((0,), tuple(outputs))
        wanted = "1 output" if is_number else f"{len(names)} classes"
        notice = f"{model} has {_outputs(outputs)}, but the training has {wanted}: {at_random}"
        return ClassHead(new, tuple(outputs), notice)
    rows = match_names(names, outputs)
    if list(rows) == [*range(len(outputs))]:
        return ClassHead(tuple(rows), tuple(outputs))
    if not any(row is not None for row in rows):
        unnamed = are_unnamed(outputs) or are_unnamed(names)
        if unnamed and len(outputs) == len(names):
            pairs = [f"{old} is {name}" for old, name in zip(outputs, names, strict=True)]
            notice = (
                f"the class names differ, so the classes of {model}'s output layer are matched BY "
                f"NUMBER: {few(pairs)}; if that is wrong, start from a model without these classes"
            )
            return ClassHead(tuple(range(len(names))), tuple(outputs), notice)
        notice = f"{of_model}, but the data have {few(names)}: {at_random}"
        return ClassHead(new, tuple(outputs), notice)
    kept = [name for name, row in zip(names, rows, strict=True) if row is not None]
    random = [name for name, row in zip(names, rows, strict=True) if row is None]
    lost = [name for number, name in enumerate(outputs) if number not in rows]
    parts = [f"{of_model}: the output layer keeps the rows of {few(kept)} by name"]
    parts += [f"NEW AT RANDOM: {few(random)}"] if random else []
    parts += [f"dropped: {few(lost)}"] if lost else []
    return ClassHead(tuple(rows), tuple(outputs), "; ".join(parts))


def _outputs(outputs: Sequence[str]) -> str:
    if len(outputs) == 1:
        return "1 output"
    named = "" if are_unnamed(outputs) else f" ({few(outputs)})"
    return f"{len(outputs)} classes{named}"


def settings_to_load(head: ClassHead | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration fields for loading a model with its pretrained output layer."""
    if head is None or head.is_kept:
        return dict(settings)
    # label2id may be incomplete if class names repeat, but loading needs only their number
    numbers = dict(enumerate(head.outputs))
    label2id = {name: number for number, name in numbers.items()}
    return {**settings, "id2label": numbers, "label2id": label2id, "problem_type": None}


def begin_head(
    model: "PreTrainedModel", head: ClassHead | None, model_class: Any, config: PretrainedConfig
) -> None:
    """Replace a loaded model's output layer with the initial output layer for training.

    Args:
        model: model that was loaded with `settings_to_load`.
        config: configuration of the model to train.

    Raises:
        TrainError: weights outside the output layer do not fit, or the layer cannot be replaced.
    """
    unfit = mismatched_weights(model)
    if not unfit and (head is None or head.is_kept):
        return
    names = output_weights(model_class, model.config)
    if others := sorted(unfit.keys() - names):
        saved, wanted = unfit[others[0]]
        raise TrainError(
            f"{model.name_or_path} cannot be loaded: its weights {others[0]} have the shape "
            f"{saved}, but its configuration needs {wanted}",
            "config.json and the weights belong to different models",
        )
    if head is None:
        shapes = ", ".join(f"{name} {saved}" for name, (saved, _) in sorted(unfit.items()))
        model.head_notice = (
            f"the output layer is NEW and starts at random: the one in {model.name_or_path} "
            f"has another size ({shapes})"
        )
        rows: tuple[int | None, ...] = (None,) * config.num_labels
    else:
        rows = head.rows
        if unfit or names <= new_weights(model):
            rows = (None,) * len(rows)
    for path in sorted({name.rpartition(".")[0] for name in names}):
        _replace(model, path, rows)
    for field in ("id2label", "label2id", "problem_type"):
        setattr(model.config, field, getattr(config, field, None))
    for module in model.modules():
        if hasattr(module, "num_labels"):
            module.num_labels = len(rows)
    if None in rows:
        model.new_weights = sorted(new_weights(model) | names)


def head_notice(model: "PreTrainedModel") -> str:
    """Return a notice about a new output layer that `head_of` could not predict, or ""."""
    return str(getattr(model, "head_notice", ""))


def output_weights(model_class: Any, config: PretrainedConfig) -> set[str]:
    """Return the names of the weights whose shape depends on the number of classes."""
    shapes = []
    for more in (0, 1):
        changed = copy.deepcopy(config)
        changed.id2label = {n: f"LABEL_{n}" for n in range(config.num_labels + more)}
        changed.label2id = {name: n for n, name in changed.id2label.items()}
        with torch.device("meta"):
            model = model_class.from_config(changed)
        shapes.append({name: weight.shape for name, weight in model.named_parameters()})
    return {name for name, shape in shapes[0].items() if shape != shapes[1].get(name)}


@torch.no_grad()  # type: ignore[untyped-decorator]
def _replace(model: "PreTrainedModel", path: str, rows: Sequence[int | None]) -> None:
    """Replace a linear layer with a layer that keeps some of its rows; all other rows are random.

    Args:
        path: name of the layer in the model.
        rows: indices of the old rows in the new order; None for a random row.
    """
    old = model.get_submodule(path)
    if type(old) is not nn.Linear or isinstance(old.weight, Nf4Weight):
        raise TrainError(
            f"the output layer {path} of {model.name_or_path} is a {type(old).__name__}, whose "
            "classes cannot be replaced one by one",
            "start from a model that has the same classes, or from one without an output layer",
        )
    new = nn.Linear(old.in_features, len(rows), old.bias is not None, dtype=old.weight.dtype)
    model._init_weights(new)  # transformers' own initialisation for this model
    for number, row in enumerate(rows):
        if row is not None:
            new.weight[number] = old.weight[row]
            if old.bias is not None:
                new.bias[number] = old.bias[row]
    model.set_submodule(path, new)
