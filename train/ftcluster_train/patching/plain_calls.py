"""Decides which calls of torch's functions in users' scripts a kernel may compute.

Each entry of `script_functions` has a `Plain`, which is checked before the entry's guard. A `Plain`
allows only known arguments. Calls with arguments that torch or a library adds later are therefore
left to torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ftcluster_kernels.documents import CausalDocumentMask, DocumentMask
from ftcluster_kernels.private_torch import computes_directly, is_ordinary

# accepted types of tensors; other subclasses of Tensor may change what a function computes
TENSORS = (torch.Tensor, torch.nn.Parameter, DocumentMask, CausalDocumentMask)
OPTIONS = frozenset({bool, int, float, str, type(None), torch.Size})


def is_plain(value: Any) -> bool:
    """Return True for an ordinary tensor in CPU memory."""
    return type(value) in TENSORS and is_ordinary(value)


@dataclass(frozen=True)
class Plain:
    """The ordinary calls of a function: tensors in CPU memory, and no tracing or transforms.

    Attributes:
        tensors: names of the function's first arguments, which must be tensors.
        optional: names of other arguments that may be tensors, by argument position.
        without_graph: True if the kernel also supports calls without gradients, as in evaluation.
    """

    tensors: tuple[str, ...]
    optional: Mapping[int, str] = field(default_factory=dict)
    without_graph: bool = False

    def allows(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return True if a call is ordinary."""
        if not self.without_graph and not torch.is_grad_enabled():
            return False
        count = len(self.tensors)
        for value in args[:count]:
            if not is_plain(value):
                return False
        for place, value in enumerate(args[count:], count):
            if type(value) not in OPTIONS and not _is_known(value, place in self.optional):
                return False
        for name, value in kwargs.items():
            if type(value) in OPTIONS or name in self.tensors:
                continue
            if not _is_known(value, name in self.optional.values()):
                return False
        for name in self.tensors[len(args) :]:
            if not is_plain(kwargs.get(name)):
                return False
        return computes_directly()


def _is_known(value: Any, may_be_tensor: bool) -> bool:
    """Return True for a list or tuple of integers, and for an ordinary tensor if allowed."""
    if may_be_tensor and is_plain(value):
        return True
    return type(value) in (list, tuple) and all(type(number) is int for number in value)
