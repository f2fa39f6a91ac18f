"""Has a model's own code call our kernels in the place of torch's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ftcluster_train.kernels.residuals import Linear, embedding, layer_norm


class Kernels(TorchFunctionMode):  # type: ignore[misc]
    """While it is active, functions of torch that a model calls are others.

    So a model needs no other code, whatever its architecture, and its weights keep their names.

    Args:
        instead: what is called in the place of which function, with the same arguments.
        head: the weight of the layer that turns hidden states into logits, where the loss is
            computed from hidden states: that layer then gives back what it gets.
    """

    def __init__(
        self,
        instead: Mapping[Any, Callable[..., Any]] | None = None,
        head: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self._linear = Linear(head)
        self._instead: dict[Any, Callable[..., Any]] = {
            functional.linear: self._linear,
            functional.layer_norm: layer_norm,
            functional.embedding: embedding,
            **(instead or {}),
        }

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See torch."""
        return self._instead.get(func, func)(*args, **(kwargs or {}))

    def __enter__(self) -> "Kernels":
        self._linear.forget()  # a layer that is computed again gets its input as before
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._linear.forget()
        super().__exit__(*error)
