"""Redirects a model's calls of torch functions to our kernels, while it is active.

The last layer of a causal model, which need not compute logits where the loss has its weight.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ftcluster_kernels.norms import copies, forget_copy
from ftcluster_kernels.products import torch_linear
from ftcluster_train.patching.fp32_residuals import EMBEDDING, LAYER_NORM, Linear
from ftcluster_train.patching.registry import FunctionPatch, has_hooks

# hidden states this large show a cap that hardly changes the logits of random weights
SOFTCAP_PROBE = 1e3

# Functions through which nobody can change a tensor's values unseen. Any other function of a norm's
# output, such as `data` or `numpy`, may give away its memory: the rounded copy is dropped then.
READING = {
    torch_linear, torch.Tensor.size, torch.Tensor.dim, torch.Tensor.add, torch.Tensor.__add__,
    torch.Tensor.__radd__, torch.add,
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
}  # fmt: skip

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class KernelMode(TorchFunctionMode):  # type: ignore[misc]
    """While it is active, a model's calls of torch functions go to kernels.

    So a model's code and the names of its weights stay as they are, whatever its architecture.

    Args:
        patches: beside those of `fp32_residuals`.
        head: the weight of the layer that turns hidden states into logits, where the loss is
            computed from hidden states; that layer then returns its input.
        head_factor: what it multiplies its input by.
        say: is told why a call is left to torch, each time.

    Attributes:
        patches: all of them.
        pending_gathers: by tensor that no function may read yet, what waits until it may.
    """

    def __init__(
        self,
        patches: Sequence[FunctionPatch] = (),
        head: torch.Tensor | None = None,
        head_factor: float = 1.0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.pending_gathers: Mapping[torch.Tensor, Callable[[], None]] = {}
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
        """Called by torch in place of each function."""
        kwargs = kwargs or {}
        if self.pending_gathers:
            self._wait_for((*args, *kwargs.values()))
        if func not in READING:
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Tensor):
                    forget_copy(value)
        return self._functions.get(func, func)(*args, **kwargs)

    def _wait_for(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value in self.pending_gathers:
                self.pending_gathers[value]()
            elif isinstance(value, (list, tuple)):
                self._wait_for(value)

    def __enter__(self) -> "KernelMode":
        self._before = copies.wanted
        copies.wanted = True
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        copies.wanted = self._before
        super().__exit__(*error)


@torch.no_grad()  # type: ignore[untyped-decorator]
def find_head(model: "PreTrainedModel", with_bias: bool = False) -> torch.Tensor | None:
    """Models whose logits are hidden states times one weight, which is tried out.

    Where `with_bias` is set, the layer may have a bias, and the model may be an encoder.

    Returns that weight, of shape (vocabulary, hidden size), for `KernelMode`'s `head`; None where
    logits are more, for example capped, or hooks see them. A constant factor is no obstacle, as the
    hidden states have it too.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear or has_hooks(layer):
        return None
    bias = layer.bias
    if bias is not None and not with_bias:
        return None
    plain = {} if with_bias else {"use_cache": False}  # which encoders do not know
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
    except Exception:  # its own code has more to do with the logits
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
