"""Redirects a model's calls of torch functions to our kernels, while it is active."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ftcluster_train.patching.fp32_residuals import EMBEDDING, LAYER_NORM, Linear
from ftcluster_train.patching.registry import FunctionPatch


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
        return self._functions.get(func, func)(*args, **kwargs)

    def _wait_for(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value in self.pending_gathers:
                self.pending_gathers[value]()
            elif isinstance(value, (list, tuple)):
                self._wait_for(value)

    def __enter__(self) -> "KernelMode":
        self._linear.clear()  # gradient checkpointing passes inputs of the forward pass again
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._linear.clear()
        super().__exit__(*error)
