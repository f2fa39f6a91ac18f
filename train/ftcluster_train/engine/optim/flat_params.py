"""One flat fp32 tensor with all model weights, and a copy in the model's dtype (bf16 or fp32)."""

import hashlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from transformers.trainer_pt_utils import get_parameter_names

from ftcluster_train.patching.batch_context import (
    BatchContext,
    GradientSinks,
    adapters_of,
    context_of,
)
from ftcluster_train.patching.exact_heads import exact_parameters

ALIGNMENT = 16  # number of elements; each fp32 parameter starts at a cache line

# regular expressions for parameters without weight decay, as in transformers' Trainer (5.23,
# get_decay_parameter_names)
NO_DECAY = ("bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")


class PendingGathers(dict[torch.Tensor, Callable[[], None]]):
    """Weights that a model must not read until their gather is complete.

    The dictionary maps each weight to a function. The function waits until the all-gather of the
    weight is complete, and then removes the weight from the dictionary.
    """

    def wait(self) -> None:
        """Wait until all weights are gathered."""
        for wait in list(self.values()):
            wait()


def split_by_decay(
    model: torch.nn.Module,
) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Return the trainable parameters with weight decay, and those without (biases, norms)."""
    names = set(get_parameter_names(model, [torch.nn.LayerNorm], list(NO_DECAY)))
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [p for name, p in trainable if name in names], [
        p for name, p in trainable if name not in names
    ]


def state_layout(model: torch.nn.Module) -> list[str]:
    """Return the name and shape of each tensor in a state: first parameters, then saved buffers."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    saved = model.state_dict().keys()
    decayed, others = split_by_decay(model)
    return [
        *(f"{names[p]} {tuple(p.shape)}, decayed" for p in decayed),
        *(f"{names[p]} {tuple(p.shape)}" for p in others),
        *(
            f"{name} {tuple(b.shape)} {b.dtype}"
            for name, b in model.named_buffers()
            if name in saved
        ),
    ]


class FlatLayout:
    """The ranges that a model's trainable parameters occupy in a flat tensor.

    Args:
        multiple: each group is padded until its length is a multiple of this number.

    Attributes:
        slices: range of each parameter in the flat tensor.
        groups: two ranges: first the parameters with weight decay, then those without.
        lengths: number of elements of each group, without padding.
    """

    def __init__(self, model: torch.nn.Module, multiple: int = ALIGNMENT) -> None:
        self.slices: dict[torch.nn.Parameter, slice] = {}
        self.groups: list[slice] = []
        self.lengths: list[int] = []
        end = 0
        for parameters in split_by_decay(model):
            start = end
            for parameter in parameters:
                self.slices[parameter] = slice(end, end + parameter.numel())
                end += _round_up(parameter.numel(), ALIGNMENT)
            self.lengths.append(end - start)
            end = start + _round_up(end - start, multiple)
            self.groups.append(slice(start, end))

    @property
    def decayed(self) -> int:
        """The number of elements with weight decay, which come first in the flat tensor."""
        return int(self.groups[0].stop)

    @property
    def elements(self) -> int:
        """The number of elements of the flat tensor, including padding."""
        return int(self.groups[-1].stop)


class ModelWeights:
    """Makes the parameters of a model views of a flat tensor.

    The model reads `model_weights` in bf16 or fp32, without casts. Norms and the last layer of
    classifiers are exceptions and always use fp32. If a norm weight were rounded to bf16, every
    token would have the same error. For classifiers, see `patching.exact_heads`.

    Attributes:
        model_weights: flat weights that the model uses, shape (elements,).
        fp32_weights: fp32 weights of norms, exact heads, and embeddings that use fp32, by
            parameter.
        read_in_fp32: fp32 weights that norms and embeddings read while the parameters are views, by
            parameter; passed to `BatchContext`.
        saved_buffers: buffers that are saved with the model.
        untied_embeddings: embedding weights that no other layer uses.
        attached: True while the parameters are views.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype, layout: FlatLayout) -> None:
        self.layout = layout
        self.model_weights = torch.zeros(layout.elements, dtype=dtype)
        saved = model.state_dict().keys()
        self.saved_buffers = [b for name, b in model.named_buffers() if name in saved]
        self._frozen = {p: p.data for p in model.parameters() if not p.requires_grad}
        self.untied_embeddings = _untied_embeddings(model)
        self.norms = fp32_parameters(model)
        self._context = context_of(model)
        self.fp32_weights: dict[torch.nn.Parameter, torch.Tensor] = {}
        self.read_in_fp32: dict[torch.Tensor, torch.Tensor] = {}
        self.attached = False

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def attach(self) -> None:
        """Make the parameters views of the flat tensor, unless they already are views."""
        if self.attached:
            return
        self.attached = True
        for parameter in self.layout.slices:
            self.attach_parameter(parameter)
        for parameter, data in self._frozen.items():
            cast = data.is_floating_point() and parameter not in self.norms
            self.read_in_fp32[parameter] = data
            parameter.data = data.to(self.model_weights.dtype) if cast else data

    def context(self, sinks: GradientSinks, pending: PendingGathers) -> BatchContext:
        """Return the batch context to enter for every forward and backward pass of the model."""
        return replace(
            self._context, fp32_weights=self.read_in_fp32, sinks=sinks, pending_gathers=pending
        )

    def attach_parameter(self, parameter: torch.nn.Parameter) -> None:
        """Make a trainable parameter a view of the flat tensor."""
        if parameter in self.fp32_weights:
            self.read_in_fp32[parameter] = self.fp32_weights[parameter]
        if parameter in self.norms:
            parameter.data = self.fp32_weights[parameter]
        else:
            place = self.layout.slices[parameter]
            parameter.data = self.model_weights[place].view(parameter.shape)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def give(self, weights: Mapping[torch.nn.Parameter, torch.Tensor]) -> None:
        """Undo `attach`: assign a separate fp32 tensor to each trainable parameter."""
        self.attached = False
        for parameter, data in {**weights, **self._frozen}.items():
            parameter.data = data
        self.read_in_fp32.clear()


class FlatWeights(ModelWeights):
    """All weights in fp32 on every rank, and a copy of the weights in the model's dtype.

    The optimizer updates `master_weights`. If the model's dtype is fp32, `model_weights` and
    `master_weights` are the same tensor. Norms and embeddings always read `master_weights`.

    Attributes:
        master_weights: flat fp32 weights, shape (elements,).
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__(model, dtype, FlatLayout(model))
        fp32 = dtype == torch.float32
        self.master_weights = self.model_weights
        if not fp32:
            self.master_weights = torch.zeros(self.layout.elements, dtype=torch.float32)
        for parameter, place in self.layout.slices.items():
            self.master_weights[place] = parameter.data.flatten()
            self.fp32_weights[parameter] = self.master_weights[place].view(parameter.shape)
        self.copy_to_model()
        self.attach()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def detach(self) -> None:
        """Assign a separate fp32 tensor to each parameter, unless it already has one."""
        if self.attached:
            self.give({p: weights.clone() for p, weights in self.fp32_weights.items()})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def copy_to_model(self) -> None:
        """Copy the master weights to the model weights, rounded to the model's dtype."""
        if self.model_weights is not self.master_weights:
            self.model_weights.copy_(self.master_weights)

    def digest(self) -> str:
        """Return the SHA-256 of the master weights and of the buffers saved with the model."""
        digest = hashlib.sha256(self.master_weights.numpy())
        add_buffers(digest, self.saved_buffers)
        return digest.hexdigest()


def add_gradient_hook(
    parameter: torch.nn.Parameter, method: Callable[[torch.nn.Parameter], None]
) -> None:
    """Call `method` with the parameter each time a backward pass has computed its gradient.

    The hook keeps only a weak reference to the method's object. A strong reference would create a
    cycle between parameter and object. Python's garbage collector could never free this cycle,
    because it does not see references inside torch.
    """
    weak = weakref.WeakMethod(method)

    def hook(parameter: torch.nn.Parameter) -> None:
        if alive := weak():
            alive(parameter)

    parameter.register_post_accumulate_grad_hook(hook)


def add_buffers(digest: "hashlib._Hash", buffers: Iterable[torch.Tensor]) -> None:
    """Update a hash with the bytes of buffers."""
    for buffer in buffers:
        digest.update(buffer.contiguous().flatten().view(torch.uint8).numpy())


def _untied_embeddings(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    owners = [(p, module) for module in model.modules() for p in module.parameters(recurse=False)]
    users = Counter(p for p, _ in owners)
    return {p for p, owner in owners if isinstance(owner, torch.nn.Embedding) and users[p] == 1}


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def fp32_parameters(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """Return the parameters that a model must use in fp32.

    These are the weights of norms and exact heads, and the magnitudes of DoRA adapters. DoRA
    divides each magnitude by the length of the corresponding weight row. This quotient starts at 1
    and changes slowly. bf16 would lose these changes, because its next number above 1 is 1.0078.
    """
    exact = exact_parameters(model)
    exact |= {a.magnitude for a in adapters_of(model).values() if a.magnitude is not None}
    by_module = [list(module.parameters(recurse=False)) for module in model.modules()]
    return {
        parameter
        for parameters in by_module
        for parameter in parameters
        if all(p.ndim < 2 for p in parameters) or parameter in exact
    }
