"""Has a model's own code call our kernels in the place of torch's."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Kernels(TorchFunctionMode):  # type: ignore[misc]
    """While it is active, functions of torch that a model calls are others.

    So a model needs no other code, whatever its architecture, and its weights keep their names.

    Args:
        instead: what is called in the place of which function, with the same arguments.
        head: the weight of the layer that turns hidden states into logits, where the loss is
            computed from hidden states: that layer then gives back what it gets.
    """

    def __init__(
        self, instead: dict[Any, Callable[..., Any]], head: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self._instead = dict(instead)
        if head is not None:
            self._instead[functional.linear] = _linear_but(head)

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See torch."""
        return self._instead.get(func, func)(*args, **(kwargs or {}))


def _linear_but(head: torch.Tensor) -> Callable[..., torch.Tensor]:
    def linear(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return input if weight is head else functional.linear(input, weight, bias)

    return linear
