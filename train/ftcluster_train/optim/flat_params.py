"""A model's weights in one flat tensor, in fp32, and a copy in the dtype that the model runs in."""

import hashlib

import torch
from transformers.trainer_pt_utils import get_parameter_names

ALIGNMENT = 16  # elements: each parameter starts on a cache line, in fp32

# transformers' Trainer does not decay these, by name (5.23, get_decay_parameter_names)
NO_DECAY = ("bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")


def split_by_decay(
    model: torch.nn.Module,
) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """The trainable parameters with weight decay and those without (biases and norms)."""
    names = set(get_parameter_names(model, [torch.nn.LayerNorm], list(NO_DECAY)))
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [p for name, p in trainable if name in names], [
        p for name, p in trainable if name not in names
    ]


class FlatWeights:
    """Makes the parameters of a model views into flat tensors.

    The model runs on `model_weights`, in bf16 or fp32, without casting a weight; the optimizer
    updates `master_weights`, in fp32 (the same tensor where the model runs in fp32). Norms run on
    the master weights: one norm weight rounded to bf16 would put the same error into every token.
    Each parameter has its part of them as attribute `master_weight`, which embeddings read.

    Attributes:
        master_weights: shape (elements,), fp32; first the parameters with weight decay.
        model_weights: same shape.
        decayed: number of leading elements with weight decay.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        self.slices: dict[torch.nn.Parameter, slice] = {}
        ends = [0]
        for parameters in split_by_decay(model):
            end = ends[-1]
            for parameter in parameters:
                self.slices[parameter] = slice(end, end + parameter.numel())
                end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
            ends.append(end)
        _, self.decayed, end = ends
        self.master_weights = torch.zeros(end)
        saved = model.state_dict().keys()
        self.saved_buffers = [b for name, b in model.named_buffers() if name in saved]
        self._frozen = {p: p.data for p in model.parameters() if not p.requires_grad}
        self._norms = _norm_parameters(model)
        for parameter, place in self.slices.items():
            self.master_weights[place] = parameter.data.flatten()
        fp32 = dtype == torch.float32
        self.model_weights = self.master_weights if fp32 else self.master_weights.to(dtype)
        self._attached = False
        self.attach()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def attach(self) -> None:
        """Make the parameters views into the flat tensors; no effect where they are."""
        if self._attached:
            return
        self._attached = True
        for parameter, place in self.slices.items():
            parameter.master_weight = self.master_weights[place].view(parameter.shape)
            if parameter in self._norms:
                parameter.data = parameter.master_weight
            else:
                parameter.data = self.model_weights[place].view(parameter.shape)
        for parameter, data in self._frozen.items():
            cast = data.is_floating_point() and parameter not in self._norms
            parameter.master_weight = data
            parameter.data = data.to(self.model_weights.dtype) if cast else data

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def detach(self) -> None:
        """Give the parameters tensors of their own, in fp32; no effect where they have them."""
        if not self._attached:
            return
        self._attached = False
        for parameter, place in self.slices.items():
            parameter.data = self.master_weights[place].view(parameter.shape).clone()
            del parameter.master_weight
        for parameter, data in self._frozen.items():
            parameter.data = data
            del parameter.master_weight

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def copy_to_model(self) -> None:
        """Round the master weights to the model's dtype, after each optimizer step."""
        if self.model_weights is not self.master_weights:
            self.model_weights.copy_(self.master_weights)

    def digest(self) -> str:
        """SHA-256 of the master weights and of the buffers that are saved with the model."""
        digest = hashlib.sha256(self.master_weights.numpy())
        for buffer in self.saved_buffers:
            digest.update(buffer.contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


def _norm_parameters(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """The parameters of modules that have only vectors."""
    by_module = [list(module.parameters(recurse=False)) for module in model.modules()]
    return {
        p for parameters in by_module if all(p.ndim < 2 for p in parameters) for p in parameters
    }
