"""Linear layers of sentence-transformers (Dense modules) behind a transformer.

The layers are part of the model, so they are trained, resumed and checked like its other weights.
Their weights are saved in separate files, which only sentence-transformers reads.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModel

from ftcluster_common.data.data_files import DataError
from ftcluster_common.models.sentence_modules import DENSE, MODULES, Dense
from ftcluster_train.errors import TrainError

NAME = "projections"  # attribute of the model that contains the layers
SOURCE = "projection_source"  # attribute of the model: the function that finds layers, and `first`
WEIGHTS = "model.safetensors"

# Function that gets a model's folder and the width of its hidden states. It returns the layers
# behind the model, and the folders with their weights. New layers, which come last, have no folder.
Layers = Callable[[Path, int], tuple[Sequence[Dense], Sequence[Path]]]


class Projection(nn.Module):  # type: ignore[misc]
    """A linear layer and its activation function, computed in fp32.

    Args:
        layer: sizes and activation function.
    """

    def __init__(self, layer: Dense) -> None:
        super().__init__()
        self.linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias)
        self.activation = getattr(nn, layer.name)()

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the projected vectors, shape (..., out_features)."""
        bias = None if self.linear.bias is None else self.linear.bias.float()
        with torch.autocast("cpu", enabled=False):
            projected = functional.linear(vectors.float(), self.linear.weight.float(), bias)
            result: torch.Tensor = self.activation(projected)
        return result


class _Projected:
    """Mixin for a model's class that saves the layers in separate files and loads them.

    Attributes:
        plain: class of the model without the layers.
        layers: function that returns the layers described in a folder.
        first: number of the first layer's module in modules.json.
    """

    plain: Any
    layers: Any
    first: int

    def save_pretrained(self: Any, folder: Path, **settings: Any) -> None:
        """Save the model as its plain class does, and each layer in a subfolder."""
        weights = self.state_dict()
        others = {n: t for n, t in weights.items() if not n.startswith(f"{NAME}.")}
        self.plain.save_pretrained(self, folder, state_dict=others, **settings)
        save_projections(self, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *arguments: Any, **settings: Any) -> Any:
        """Load the model as its plain class does, and add the layers from its folder."""
        loaded = cls.plain.from_pretrained(folder, *arguments, **settings)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        attach(model, Path(folder), cls.layers, cls.first)
        return loaded


def attach(model: Any, folder: Path, layers: Layers, first: int) -> None:
    """Add the layers behind a transformer to a model in place, with the weights of a folder.

    They replace any layers that the model already has. Layers without saved weights get random
    weights, which are the same on all ranks. The dtype of a layer is the model's dtype, or the
    dtype of the saved weights if that is wider.

    Args:
        folder: folder of the model, or of its adapters.
        first: number of the first layer's module in modules.json.

    Raises:
        TrainError: the weights of the layers cannot be loaded.
    """
    setattr(model, SOURCE, (layers, first))
    plain = model.plain if isinstance(model, _Projected) else type(model)
    try:
        wanted, saved = layers(folder, model.config.hidden_size)
    except DataError as error:
        raise TrainError(str(error)) from error
    if not wanted and not projections_of(model):
        return
    with torch.random.fork_rng(()):
        torch.manual_seed(0)
        projections = nn.ModuleList(Projection(layer) for layer in wanted)
    for number, projection in enumerate(projections):
        dtype = torch.float32
        if number < len(saved):
            weights = _load(saved[number])
            try:
                projection.load_state_dict(weights)
            except RuntimeError as error:
                raise _unloadable(saved[number], error) from error
            dtype = next(iter(weights.values())).dtype
        projection.to(torch.promote_types(dtype, model.dtype))
    members = {"plain": plain, "layers": staticmethod(layers), "first": first}
    kind = type(plain.__name__, (_Projected, plain), members)
    attributes = {"__class__": kind, NAME: projections.train(model.training)}
    for name, value in attributes.items():
        setattr(model, name, value)


def attach_saved(model: Any, folder: Path) -> None:
    """Replace the layers behind a model by the layers that were saved with its adapters.

    The model is not changed if the folder contains only adapters, as peft writes them.

    Raises:
        TrainError: the weights of the layers cannot be loaded.
    """
    if hasattr(model, SOURCE) and (folder / MODULES).is_file():
        attach(model, folder, *getattr(model, SOURCE))


def save_projections(model: Any, folder: Path) -> None:
    """Save each layer behind a model in a subfolder, in the format of sentence-transformers."""
    for number, projection in enumerate(projections_of(model), start=getattr(model, "first", 0)):
        target = folder / f"{number}_{DENSE}"
        target.mkdir()
        state = {name: t.contiguous() for name, t in projection.state_dict().items()}
        save_file(state, target / WEIGHTS)


def saved_projections(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Read the weights of the layers that were saved beside adapters, by their names in the model.

    Raises:
        TrainError: the weights cannot be loaded.
    """
    if not projections_of(model):
        return {}
    layers, _ = getattr(model, SOURCE)
    _, places = layers(folder, model.config.hidden_size)
    return {
        f"{NAME}.{number}.{name}": tensor
        for number, place in enumerate(places)
        for name, tensor in _load(place).items()
    }


def _load(place: Path) -> dict[str, torch.Tensor]:
    try:
        weights: dict[str, torch.Tensor] = load_file(place / WEIGHTS)
    except Exception as error:  # safetensors raises errors of several kinds
        raise _unloadable(place, error) from error
    return weights


def _unloadable(place: Path, error: Exception) -> TrainError:
    return TrainError(f"the weights in {place} cannot be loaded: {error}")


def projections_of(model: Any) -> Sequence[Projection]:
    """Return the layers behind a model's transformer."""
    layers: Sequence[Projection] = getattr(model, NAME, ())
    return layers


def project(vectors: torch.Tensor, projections: Sequence[Projection]) -> torch.Tensor:
    """Apply all layers to vectors, and return the result."""
    for projection in projections:
        vectors = projection(vectors)
    return vectors


def model_class_with(layers: Layers, first: int) -> Any:
    """Return a stand-in for AutoModel whose models have the layers that `layers` returns.

    Args:
        first: number of the first layer's module in modules.json.
    """

    def from_pretrained(folder: str | Path, *arguments: Any, **settings: Any) -> Any:
        loaded = AutoModel.from_pretrained(folder, *arguments, **settings)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        attach(model, Path(folder), layers, first)
        return loaded

    def from_config(*arguments: Any, **settings: Any) -> Any:
        model = AutoModel.from_config(*arguments, **settings)
        attach(model, Path(), layers, first)
        return model

    functions = {f.__name__: staticmethod(f) for f in (from_pretrained, from_config)}
    return type(AutoModel.__name__, (), functions)
