"""Computes an encoder's layers for query, key and value in one matmul, with the model's own code.

The model calls the three layers one after the other. The call of the first layer computes all
outputs, and the other two calls return them if they have the same input.
"""

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import nn

from ftcluster_kernels.gradient_sums import GradientSums
from ftcluster_kernels.joint_linear import joint_linear
from ftcluster_kernels.private_torch import version_of
from ftcluster_train.patching.rows import Rows

# names of the layers in transformers' encoders, in the order in which they are called
NAMES = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))
Siblings = Mapping[torch.Tensor, tuple[nn.Linear, ...]]


def siblings_of(model: nn.Module) -> dict[torch.Tensor, tuple[nn.Linear, ...]]:
    """Return the query, key and value layers of each self-attention, by the weight of each layer.

    Layers with an adapter, without a bias or of another class than torch's are not returned.
    """
    found: dict[torch.Tensor, tuple[nn.Linear, ...]] = {}
    for module in model.modules():
        if type(module).__name__.endswith("SelfAttention"):
            parts = vars(module)["_modules"]
            for names in NAMES:
                layers = tuple(parts[name] for name in names if name in parts)
                if len(layers) == len(names) and all(map(_is_plain, layers)):
                    found |= dict.fromkeys((layer.weight for layer in layers), layers)
    return found


def _is_plain(layer: nn.Module) -> bool:
    plain = type(layer) is nn.Linear and layer.bias is not None
    return plain and vars(layer).get("adapter") is None


class JointLayers:
    """The outputs of layers that were computed together with the first of them."""

    def __init__(self) -> None:
        # by weight: input, version of the input, and output
        self._waiting: dict[
            torch.Tensor, tuple[weakref.ref[torch.Tensor], int, torch.Tensor, torch.Tensor]
        ] = {}

    def start(
        self,
        layers: tuple[nn.Linear, ...],
        input: torch.Tensor,
        rounded: Callable[[torch.Tensor], torch.Tensor],
        sums: Mapping[torch.Tensor, GradientSums],
        pending: Mapping[torch.Tensor, Callable[[], None]],
    ) -> torch.Tensor | None:
        """Compute all layers and return the first output; None if they must be separate.

        Args:
            layers: see `siblings_of`.
            rounded: function that returns the input in the weights' dtype.
            sums, pending: see `BatchContext`.
        """
        self._waiting.clear()
        weights, biases = [x.weight for x in layers], [x.bias for x in layers]
        for parameter in (*weights, *biases) if pending else ():
            if parameter in pending:
                pending[parameter]()
        outputs = joint_linear(rounded(input), weights, biases, [sums.get(w) for w in weights])
        if outputs is None:
            return None
        source = weakref.ref(input), version_of(input)
        for layer, output in list(zip(layers, outputs, strict=True))[1:]:
            self._waiting[layer.weight] = *source, layer.bias, output
        return outputs[0]

    def take(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the output of a layer if it was computed from this input; it is returned once."""
        source, version, of_layer, output = self._waiting.pop(weight, (None, 0, None, None))
        same = source is not None and source() is input and version == version_of(input)
        return output if same and bias is of_layer else None


def reads_all(rows: Rows | None) -> bool:
    """Return True if the layers compute all rows of their inputs."""
    return rows is None or (rows.read is None and rows.real is None)
