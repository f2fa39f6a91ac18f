"""The weights of a model in one row of memory: what is learned, and what is computed with."""

import hashlib

import torch
from transformers.trainer_pt_utils import get_parameter_names

ALIGNED = 16  # elements: a parameter begins on a cache line, in fp32

# what transformers' Trainer does not decay, by name (5.23, get_decay_parameter_names)
NOT_DECAYED = ("bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")


def split_by_decay(
    model: torch.nn.Module,
) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """The parameters that are learned: those that weight decay is for, and the others.

    By transformers' rule: biases and norms, as the names say, are not decayed.
    """
    names = set(get_parameter_names(model, [torch.nn.LayerNorm], list(NOT_DECAYED)))
    learned = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decayed = [p for name, p in learned if name in names]
    return decayed, [p for name, p in learned if name not in names]


class FlatWeights:
    """The parameters of a model as parts of flat tensors.

    The model computes with `computed`, in bf16 or fp32, without casting any weight; the optimizer
    learns `masters`, in fp32, which are the same tensor where the model computes in fp32. Norms
    compute with their masters: rounded to bf16, one weight would put the same error into every
    token. Each parameter has its part of the masters as `master`, for its embedding.

    Args:
        model: with parameters in fp32; they become parts of `computed`.
        dtype: that the model is to compute with.

    Attributes:
        masters: of shape (elements,), in fp32; first what weight decay is for, then the others.
        computed: of the same shape.
        decayed: elements of the first of both.
        places: where each parameter is.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self.places: dict[torch.nn.Parameter, slice] = {}
        ends = [0]
        for parameters in split_by_decay(model):
            end = ends[-1]
            for parameter in parameters:
                self.places[parameter] = slice(end, end + parameter.numel())
                end += -(-parameter.numel() // ALIGNED) * ALIGNED
            ends.append(end)
        _, self.decayed, end = ends
        self.masters = torch.zeros(end)
        self._buffers = [model.get_buffer(name) for name in _saved_buffers(model)]
        self._frozen = {p: p.data for p in model.parameters() if not p.requires_grad}
        self._norms = _norms(model)
        for parameter, place in self.places.items():
            self.masters[place] = parameter.data.flatten()
        self.computed = self.masters if dtype == torch.float32 else self.masters.to(dtype)
        self.hold()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def hold(self) -> None:
        """Have the model's parameters be parts of `computed`, those of norms parts of `masters`."""
        for parameter, place in self.places.items():
            parameter.master = self.masters[place].view(parameter.shape)
            if parameter in self._norms:
                parameter.data = parameter.master
            else:
                parameter.data = self.computed[place].view(parameter.shape)
        for parameter, data in self._frozen.items():
            rounded = data.is_floating_point() and parameter not in self._norms
            parameter.master = data
            parameter.data = data.to(self.computed.dtype) if rounded else data

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def refresh(self) -> None:
        """Have the model compute with what has been learned."""
        if self.computed is not self.masters:
            self.computed.copy_(self.masters)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def release(self) -> None:
        """Give the model its parameters as tensors of their own, in fp32 again."""
        for parameter, place in self.places.items():
            parameter.data = self.masters[place].view(parameter.shape).clone()
            del parameter.master
        for parameter, data in self._frozen.items():
            parameter.data = data
            del parameter.master

    def digest(self) -> str:
        """SHA-256 over the bytes of all that is learned, and of the buffers that are saved."""
        digest = hashlib.sha256(self.masters.numpy())
        for buffer in self._buffers:
            digest.update(buffer.contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


def _norms(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """The parameters of modules that have nothing but vectors."""
    own = [list(module.parameters(recurse=False)) for module in model.modules()]
    return {p for parameters in own if all(p.ndim < 2 for p in parameters) for p in parameters}


def _saved_buffers(model: torch.nn.Module) -> list[str]:
    saved = model.state_dict().keys()
    return [name for name, _ in model.named_buffers() if name in saved]
