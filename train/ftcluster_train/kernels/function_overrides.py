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

    Attributes:
        arriving: by tensor that no function may read yet, what waits until it may.
    """

    def __init__(
        self,
        overrides: Mapping[Any, Callable[..., Any]] | None = None,
        head: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.arriving: Mapping[torch.Tensor, Callable[[], None]] = {}
        self._linear = Linear(head)
        self._overrides: dict[Any, Callable[..., Any]] = {
            functional.linear: self._linear,
            torch.addmm: self._linear.addmm,
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
        kwargs = kwargs or {}
        if self.arriving:
            self._wait_for((*args, *kwargs.values()))
        return self._overrides.get(func, func)(*args, **kwargs)

    def _wait_for(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value in self.arriving:
                self.arriving[value]()
            elif isinstance(value, (list, tuple)):
                self._wait_for(value)

    def __enter__(self) -> "FunctionOverrides":
        self._linear.clear()  # gradient checkpointing passes inputs of the forward pass again
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._linear.clear()
        super().__exit__(*error)
