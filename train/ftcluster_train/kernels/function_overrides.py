"""Redirects a model's calls of torch functions to our kernels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ftcluster_train.kernels.residuals import Linear, embedding, layer_norm


class FunctionOverrides(TorchFunctionMode):  # type: ignore[misc]
    """While it is active, a model's calls of torch functions go to others.

    So a model's code and the names of its weights stay as they are, whatever its architecture.

    Args:
        overrides: by torch's function, another one with the same arguments.
        head: the weight of the layer that turns hidden states into logits, where the loss is
            computed from hidden states; that layer then returns its input.
    """

    def __init__(
        self,
        overrides: Mapping[Any, Callable[..., Any]] | None = None,
        head: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self._linear = Linear(head)
        self._overrides: dict[Any, Callable[..., Any]] = {
            functional.linear: self._linear,
            functional.layer_norm: layer_norm,
            functional.embedding: embedding,
            **(overrides or {}),
        }

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch in place of each function."""
        return self._overrides.get(func, func)(*args, **(kwargs or {}))

    def __enter__(self) -> "FunctionOverrides":
        self._linear.clear()  # gradient checkpointing passes inputs of the forward pass again
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._linear.clear()
        super().__exit__(*error)
