"""Redirects a model's calls of torch functions to our kernels while the mode is active.

The mode also handles the last layer of a causal model, which need not compute logits if the loss is
computed with the layer's weight.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ftcluster_kernels.norms import RoundedCopies
from ftcluster_kernels.products import torch_linear
from ftcluster_train.patching.batch_context import NOTHING, BatchContext, current_context
from ftcluster_train.patching.fp32_residuals import EMBEDDING, LAYER_NORM, Linear
from ftcluster_train.patching.registry import FunctionPatch, has_hooks

# factor for hidden states that makes logits so large that a cap of the logits becomes visible
SOFTCAP_PROBE = 1e3

# Functions that cannot change a tensor's values unnoticed. Any other function that gets a norm's
# output, such as `data` or `numpy`, may expose the tensor's memory, so the rounded copy is dropped.
READING = {
    torch_linear, torch.Tensor.size, torch.Tensor.dim, torch.Tensor.add, torch.Tensor.__add__,
    torch.Tensor.__radd__, torch.add,
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
}  # fmt: skip

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class KernelMode(TorchFunctionMode):  # type: ignore[misc]
    """A mode that redirects a model's calls of torch functions to kernels.

    The model's code and the names of its weights stay unchanged, whatever the architecture is.

    Args:
        patches: entries in addition to the entries of `fp32_residuals`.
        head: weight of the layer that turns hidden states into logits, if the loss is computed from
            hidden states; that layer then returns its input.
        head_factor: factor by which that layer multiplies its input.
        say: function that is called with the reason whenever torch computes a call; None if the
            reasons are not needed.
        context: context with the model's parameters, see `context_of`; None means the context that
            is already entered.

    Attributes:
        patches: all entries.
    """

    def __init__(
        self,
        patches: Sequence[FunctionPatch] = (),
        head: torch.Tensor | None = None,
        head_factor: float = 1.0,
        say: Callable[[str], None] | None = None,
        context: BatchContext | None = None,
    ) -> None:
        super().__init__()
        self._context, self._copies = context, RoundedCopies()
        self._entered: list[BatchContext] = []  # recomputing a checkpoint enters once more
        self._linear = Linear(head, head_factor)
        self.patches = (*self._linear.patches(), LAYER_NORM, EMBEDDING, *patches)
        self._functions = {patch.original: patch.function(say) for patch in self.patches}

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Handle a function call; torch calls this method instead of each function."""
        kwargs = kwargs or {}
        pending = self._entered[-1].pending_gathers
        if pending:
            _wait_for((*args, *kwargs.values()), pending)
        if func not in READING:
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Tensor):
                    self._copies.forget(value)
        return self._functions.get(func, func)(*args, **kwargs)

    def __enter__(self) -> "KernelMode":
        outer = self._context or current_context() or NOTHING
        # the context's rows belong to a call that began outside
        inner = replace(outer, rows=None, copies=self._copies)
        self._entered.append(inner.__enter__())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._entered.pop().__exit__()


def _wait_for(values: Sequence[Any], pending: Mapping[torch.Tensor, Callable[[], None]]) -> None:
    """Wait for tensors among a function's arguments that are still being gathered."""
    for value in values:
        if isinstance(value, torch.Tensor) and value in pending:
            pending[value]()
        elif isinstance(value, (list, tuple)):
            _wait_for(value, pending)


@torch.no_grad()  # type: ignore[untyped-decorator]
def find_head(model: "PreTrainedModel", with_bias: bool = False) -> torch.Tensor | None:
    """Return the weight that turns hidden states into logits, for `KernelMode`'s `head`.

    The function runs the model on a small input. It returns None if the model changes the logits
    further, for example caps them, or if hooks see the logits. A constant factor of the logits is
    allowed, because the hidden states can be multiplied by this factor instead.

    Args:
        with_bias: True if the layer may have a bias and the model may be an encoder.

    Returns:
        The weight, of shape (vocabulary, hidden size), or None.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or has_hooks(layer):
        return None
    bias = layer.bias
    if bias is not None and not with_bias:
        return None
    plain = {} if with_bias else {"use_cache": False}  # encoders do not accept this argument
    model.eval()
    tokens = torch.arange(8, dtype=torch.int64, device="cpu").unsqueeze(0) % layer.out_features
    inputs = {"input_ids": tokens, **plain}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens

    def forward(kernels: KernelMode) -> torch.Tensor:
        bf16 = layer.weight.dtype == torch.bfloat16
        with kernels, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits: torch.Tensor = model(**inputs).logits
        return logits

    logits = forward(KernelMode())
    try:
        hidden = forward(KernelMode(head=layer.weight))
        large = forward(KernelMode(head=layer.weight, head_factor=SOFTCAP_PROBE))
    except Exception:  # the model's own code uses the logits
        return None
    if hidden.shape != (*logits.shape[:-1], layer.in_features):
        return None
    if logits.shape[-1] != layer.out_features:
        return None
    hidden = hidden.to(logits.dtype)
    rounded = 4 * torch.finfo(logits.dtype).eps
    rtol, atol = max(1e-3, rounded), max(1e-4, rounded * float(logits.abs().max()))
    product = hidden @ layer.weight.T + (0 if bias is None else bias.to(logits.dtype))
    same = torch.allclose(product, logits, rtol=rtol, atol=atol)
    linear = torch.allclose(large.to(hidden.dtype), hidden * SOFTCAP_PROBE, rtol=rtol)
    return layer.weight if same and linear else None
