"""Products of matrices: by AMX tiles of our own where these are faster, otherwise by torch.

oneDNN gives all threads equal shares, so each product waits for the slowest core, and it copies the
factors of a weight's gradient number by number.
"""

import ctypes
import os
from functools import cache

import torch
from torch.nn import functional

from ftcluster_train.io.machine import cpuinfo_field
from ftcluster_train.kernels import simd
from ftcluster_train.kernels.private_torch import has_linear_in_bf16, linear_in_bf16

AMX = {"amx_tile", "amx_bf16"}  # flags of /proc/cpuinfo
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # of oneDNN, which computes the other products
# numbers that a thread packs at once, see native/weight_gradient.c
TILES, PACKED_ROWS = 12 * 56 * 512, 56 * 32
PANEL, PANEL_ROWS = (768 << 10) // 2, 48  # likewise, and at least so many rows: native/product.c
MULTIPLE = 32  # of which the sizes of a weight are that tiles take
# with fewer rows it takes too long to pack the weight, and oneDNN is faster at small weights, by a
# third with 384 x 384
FEWEST_ROWS, NARROWEST = 512, 512

torch_linear = functional.linear  # also where `ftcluster_train.fast` has replaced it


@cache
def has_amx() -> bool:
    """Whether the CPU has tiles, which it asks the kernel to allow.

    A limit that was set for oneDNN holds here as well.
    """
    library = simd.loaded_library()
    limit = next(filter(None, map(os.environ.get, LIMITS)), "ALL").upper()
    if not set(cpuinfo_field("flags").split()) >= AMX or not hasattr(library, "weight_gradient"):
        return False
    if "AMX" not in limit and limit not in ("ALL", "DEFAULT"):
        return False
    words = map(ctypes.c_long, (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA))
    return int(ctypes.CDLL(None).syscall(*words)) == 0


def weight_gradient_(
    gradient: torch.Tensor, input: torch.Tensor, sums: torch.Tensor, adds: bool
) -> None:
    """The gradient of a linear layer's weight, gradient' input, on AMX.

    Args:
        gradient, input: contiguous bf16, shapes (rows, outputs) and (rows, inputs); these sizes
            are multiples of 32.
        sums: contiguous fp32 from a cache line on, shape (outputs, inputs); it is written.
        adds: whether the gradient is added to `sums`.
    """
    (rows, outputs), inputs = gradient.shape, input.shape[1]
    packed, own = (
        torch.empty(size, dtype=torch.bfloat16)
        for size in (
            inputs * min(PACKED_ROWS, -(-rows // 32) * 32),
            TILES * simd.threads_for(gradient),
        )
    )
    simd.call(
        "weight_gradient", gradient, input, sums, rows, outputs, inputs, packed, own, int(adds)
    )


def product_on_tiles(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """left right + bias, on AMX; summed in fp32 and rounded once.

    Args:
        left: contiguous bf16, shape (rows, depth).
        right: bf16, shape (depth, columns), of which it or its transpose is contiguous; these sizes
            are multiples of 32.
        bias: contiguous bf16, shape (columns,).
    """
    (rows, depth), columns = left.shape, right.shape[1]
    own = max(PANEL, PANEL_ROWS * depth) * simd.threads_for(left)
    output, packed, scratch = (
        torch.empty(size, dtype=torch.bfloat16)
        for size in ((rows, columns), (depth * columns,), (own,))
    )
    turned = not right.is_contiguous()
    weight = right.T if turned else right
    simd.call("product", left, weight, bias, output, rows, depth, columns, turned, packed, scratch)
    return output


def fits_tiles(outputs: int, inputs: int) -> bool:
    """Whether the tiles take a weight with these sizes."""
    return outputs % MULTIPLE == 0 and inputs % MULTIPLE == 0


def product(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """left right + bias.

    Args:
        left: shape (..., depth).
        right: shape (depth, columns), of the same dtype.
        bias: shape (columns,), or one number for all; likewise.
    """
    if bias is not None:  # both kernels read it as if it were contiguous, oneDNN beyond its end
        bias = bias.expand(right.shape[1]).contiguous()
    if _takes(left, right, bias):
        rows = left.flatten(0, -2).contiguous()
        return product_on_tiles(rows, right, bias).view(*left.shape[:-1], -1)
    if bias is None:
        return left @ right
    if left.dtype == torch.bfloat16 and has_linear_in_bf16():
        return linear_in_bf16(left, right.T, bias)
    return torch_linear(left, right.T, bias)


def _takes(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> bool:
    if right.ndim != 2:
        return False
    in_order = right.is_contiguous() or right.T.is_contiguous()
    dtypes = {x.dtype for x in (left, right, bias) if x is not None}
    # others are torch's to refuse: C would read beyond their end
    fits = left.shape[-1] == len(right) and fits_tiles(*right.shape)
    if dtypes != {torch.bfloat16} or not fits or not in_order:
        return False
    large = min(right.shape) >= NARROWEST and left.numel() >= FEWEST_ROWS * left.shape[-1]
    return large and has_amx()


def product_of_columns(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left' right, of shapes (rows, outputs) and (rows, inputs)."""
    fits = left.dtype == torch.bfloat16 and fits_tiles(left.shape[1], right.shape[1])
    if not (fits and len(left) and has_amx()):
        return left.T @ right
    sums = torch.empty(left.shape[1], right.shape[1])
    weight_gradient_(left.contiguous(), right.contiguous(), sums, adds=False)
    return sums.to(left.dtype)
