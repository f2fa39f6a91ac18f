"""torch's AdamW and Adam take their fused kernel, which is one pass over the weights."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch


def fuse() -> None:
    """Have them take it where the script leaves the choice to torch."""
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        kind.__init__ = _fusing(kind.__init__)


def _fusing(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def fused_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for group in self.param_groups:
            if _is_open(group):
                group["fused"] = True

    return fused_init


def _is_open(group: Mapping[str, Any]) -> bool:
    chosen = group.get("fused"), group.get("foreach")
    plain = not (group.get("capturable") or group.get("differentiable"))
    return (
        chosen == (None, None)
        and plain
        and all(
            type(p) in (torch.Tensor, torch.nn.Parameter)
            and p.device.type == "cpu"
            and p.dtype == torch.float32
            for p in group["params"]
        )
    )
