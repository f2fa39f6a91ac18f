"""A mask of attention and a bias of its scores that stay separate until a function needs their sum.

T5 and similar models learn a bias for each distance between two tokens. transformers joins it with
the padding mask in each layer, which makes a matrix of all samples, heads, queries and keys, and a
gradient of the same size. The loops in C can read both separately.
"""

from collections.abc import Sequence
from typing import Any

import torch


class BiasedMask(torch.Tensor):  # type: ignore[misc]
    """A mask for torch's attention: `bias` where `seen` is True, otherwise `lowest`.

    Our attention recognizes the class and reads the attributes. Every function of torch gets the
    joined mask instead, as an ordinary tensor.

    Attributes:
        bias: values to add to the scores; may need a gradient.
        seen: boolean, True for visible keys; can be broadcast with `bias`.
        lowest: value for keys that are not visible.
    """

    bias: torch.Tensor
    seen: torch.Tensor
    lowest: float

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        _types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch with the joined mask."""
        named = {name: _plain(value) for name, value in (kwargs or {}).items()}
        return func(*map(_plain, args), **named)

    def joined(self) -> torch.Tensor:
        """Return the mask as an ordinary tensor."""
        return torch.where(self.seen, self.bias, self.lowest)


def biased_mask(bias: torch.Tensor, seen: torch.Tensor, lowest: float) -> torch.Tensor:
    """Return a BiasedMask with these attributes."""
    mask: BiasedMask = torch.empty(0, dtype=bias.dtype, device="cpu").as_subclass(BiasedMask)
    mask.bias, mask.seen, mask.lowest = bias, seen, lowest
    return mask


def _plain(value: Any) -> Any:
    """Return an argument with joined masks."""
    if isinstance(value, BiasedMask):
        return value.joined()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value
