"""Computes matrix multiplications in our own loops where these are faster, otherwise in torch.

One set of loops uses AMX tiles. oneDNN is slower on AMX for two reasons. It gives all threads equal
shares, so each matmul waits for the slowest core. For the gradient of a weight, it copies the
factors element by element.

The other loops use multiply-adds in vector registers, on CPUs that Intel did not make. On these
CPUs, MKL reaches only 85 to 88 % of the peak.
"""

import ctypes
import os
from functools import cache
from typing import NamedTuple

import torch
from torch.nn import functional

from ftcluster_kernels import simd
from ftcluster_kernels.cpu import cpuinfo_field
from ftcluster_kernels.private_torch import has_onednn_linear, onednn_linear

AMX = {"amx_tile", "amx_bf16"}  # flags of /proc/cpuinfo
INTEL, COOPER_LAKE = "GenuineIntel", "85"  # vendor_id and model of /proc/cpuinfo
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA = 158, 0x1023, 18  # Linux on x86-64
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # variables that limit oneDNN
# elements that a thread packs at once, see native/weight_gradient.c
TILES, PACKED_ROWS = 12 * 56 * 512, 56 * 32
# maximum elements and minimum rows of a panel that a thread packs at once, see native/product.c
PANEL, PANEL_ROWS = (768 << 10) // 2, 48
GROUP = (16 << 20) // 2  # maximum elements of the panels of all threads together
MULTIPLE = 32  # tiles require weights whose sizes are multiples of this
# Minimum number of rows: with fewer rows, packing the weight takes too long. Minimum size of each
# dimension of a weight: with 384 x 384, oneDNN is a third faster.
FEWEST_ROWS, NARROWEST = 512, 512
NARROWEST_WITH_ADAPTER = 128  # smaller, because separate matmuls of the adapter are slow

MUCH_WORK = 1 << 28  # with fewer multiplications in a matmul, packing takes too long

torch_linear = functional.linear  # `ftcluster_train.fast` may have replaced it


@cache
def has_amx() -> bool:
    """Return True if the CPU has AMX tiles and Linux permits this process to use them.

    A limit that is set for oneDNN also applies here.
    """
    if not set(cpuinfo_field("flags").split()) >= AMX or not _is_allowed("AMX"):
        return False
    if not _knows_bf16():
        return False
    arguments = map(ctypes.c_long, (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA))
    return int(ctypes.CDLL(None).syscall(*arguments)) == 0


def fast_bf16() -> str:
    """Return the instructions that make bf16 faster than fp32 on this CPU, or "".

    On Intel's CPUs since Sapphire Rapids, AVX512-BF16 has only half of fp32's rate of multiply-adds
    (bench/results/2026-11-29-peak.json), so they need AMX. Cooper Lake, Intel's only older CPU with
    AVX512-BF16, was not measured.
    """
    if has_amx():
        return "AMX"
    is_slow = cpuinfo_field("vendor_id") == INTEL and cpuinfo_field("model") != COOPER_LAKE
    return "AVX512-BF16" if has_avx512_bf16() and not is_slow else ""


@cache
def fma_dtypes() -> frozenset[torch.dtype]:
    """Return the dtypes whose large matmuls our own multiply-adds compute faster than torch."""
    if not simd.is_available() or cpuinfo_field("vendor_id") == INTEL:
        return frozenset()
    return frozenset({torch.float32, torch.bfloat16} if adds_bf16() else {torch.float32})


@cache
def adds_bf16() -> bool:
    """Return True if our own multiply-adds support bf16, which needs AVX512-BF16.

    A limit that is set for oneDNN also applies here.
    """
    return has_avx512_bf16() and _is_allowed("BF16", "AMX") and _knows_bf16()


def has_avx512_bf16() -> bool:
    """Return True if the CPU has AVX512-BF16."""
    return "avx512_bf16" in cpuinfo_field("flags").split()


def _knows_bf16() -> bool:
    """Return True if the compiler of the loops supported AMX, and thus AVX512-BF16."""
    return hasattr(simd.loaded_library(), "weight_gradient")


def _is_allowed(*names: str) -> bool:
    """Return True if no limit is set for oneDNN, or if the limit contains one of these names."""
    limit = next(filter(None, map(os.environ.get, LIMITS)), "ALL").upper()
    return limit in ("ALL", "DEFAULT") or any(name in limit for name in names)


def weight_gradient_(
    gradient: torch.Tensor, input: torch.Tensor, sums: torch.Tensor, adds: bool
) -> None:
    """Compute the gradient of a linear layer's weight, gradient.T @ input, on AMX tiles.

    Args:
        gradient, input: bf16, shapes (rows, outputs) and (rows, inputs); these sizes are multiples
            of 32. `gradient` or its transpose is contiguous; in the latter case `rows` is a
            multiple of 32 and `outputs` is arbitrary.
        sums: output, contiguous fp32, shape (outputs, inputs), aligned to a cache line.
        adds: True to add the gradient to `sums`.

    Raises:
        ValueError: the numbers of rows differ; C would read beyond the end of a tensor.
    """
    if len(gradient) != len(input):
        raise ValueError(
            f"gradient and input must have the same number of rows, got shapes "
            f"{tuple(gradient.shape)} and {tuple(input.shape)}"
        )
    (rows, outputs), inputs = gradient.shape, input.shape[1]
    # A gradient with one output is contiguous in both orders; only the transposed order supports
    # it, because 1 is not a multiple of 32.
    turned = outputs == 1 or not gradient.is_contiguous()
    packed_size = inputs * min(PACKED_ROWS, -(-rows // 32) * 32)
    panels_size = TILES * simd.threads_for(gradient)
    bf16, factor = torch.bfloat16, gradient.T if turned else gradient
    packed, panels = (simd.empty(size, dtype=bf16) for size in (packed_size, panels_size))
    simd.call("weight_gradient", gradient, simd.address(factor, bf16, rows * outputs),
              simd.address(input, bf16, rows * inputs), simd.fp32(sums, outputs * inputs),
              rows, outputs, inputs, simd.address(packed, bf16, packed_size),
              simd.address(panels, bf16, panels_size), adds, turned)  # fmt: skip


def product_by_fma(
    left: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
    adds: bool = False,
) -> torch.Tensor:
    """Return left @ right + bias by multiply-adds in vector registers, summed in fp32.

    Args:
        left: shape (rows, depth), contiguous or with a contiguous transpose, like `right`; fp32, or
            bf16 if the CPU has AVX512-BF16. In bf16 the depth is even if it is the contiguous
            dimension, and at most 8192 without `sums`.
        right: shape (depth, columns), of the same dtype.
        bias: contiguous, shape (columns,), of the output's dtype.
        sums: output, contiguous fp32, shape (rows, columns); None returns a new tensor.
        adds: True to add the result to `sums`.

    Raises:
        ValueError: the factors' sizes do not match; C would read beyond their end.
    """
    if left.shape[1] != len(right):
        raise ValueError(f"cannot multiply shapes {tuple(left.shape)} and {tuple(right.shape)}")
    (rows, depth), columns, kind = left.shape, right.shape[1], simd.TYPES[left.dtype]
    output = left.new_empty(rows, columns) if sums is None else sums
    library, sizes = simd.loaded_library(), (kind, rows, depth, columns)
    assert library is not None
    space = library.fma_product_space
    space.restype = ctypes.c_int64
    packed, panels = (
        simd.empty(threads * int(space(*map(ctypes.c_int64, (*sizes, per_thread)))))
        for per_thread, threads in ((False, 1), (True, simd.threads_for(left)))
    )
    # if a dimension is 1, both orders are the same, but only this order supports an odd depth
    turned = left.T.is_contiguous(), not right.is_contiguous()
    first, second = (
        x.T if is_turned else x for x, is_turned in zip((left, right), turned, strict=True)
    )
    simd.call("fma_product", left, simd.typed(first, rows * depth),
              simd.address(second, left.dtype, depth * columns),
              None if bias is None else simd.address(bias, output.dtype, columns),
              simd.address(output, left.dtype if sums is None else torch.float32, rows * columns),
              rows, depth, columns, *turned, sums is not None, adds,
              *(simd.fp32(x, x.numel()) for x in (packed, panels)), types=(kind,))  # fmt: skip
    return output


class LowRank(NamedTuple):
    """The adapter's term in a matmul: low @ up, with low = scale * left @ down.

    Attributes:
        down, up: bf16, shapes (depth, rank) and (rank, columns), stored in the order of `right`;
            the rank is a multiple of 32.
        low: output, contiguous bf16, shape (rows, rank).
    """

    down: torch.Tensor
    up: torch.Tensor
    scale: float
    low: torch.Tensor


def product_on_tiles(
    left: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None,
    added: LowRank | None = None,
) -> torch.Tensor:
    """Return left @ right + bias + the adapter's term, on AMX tiles; the fp32 sum is rounded once.

    Args:
        left: contiguous bf16, shape (rows, depth).
        right: bf16, shape (depth, columns), contiguous or with a contiguous transpose; these sizes
            are multiples of 32.
        bias: contiguous bf16, shape (columns,).
        added: adapter's term; None if there is no adapter.
    """
    (rows, depth), columns = left.shape, right.shape[1]
    turned, rank = not right.is_contiguous(), 0 if added is None else added.up.shape[0]
    group = min(columns, max(GROUP // (depth + rank), MULTIPLE)) * (depth + rank)
    scratch_size = max(PANEL, PANEL_ROWS * (depth + rank)) * simd.threads_for(left)
    bf16 = torch.bfloat16
    output, packed, scratch = (
        simd.empty(*sizes, dtype=bf16)
        for sizes in ((rows, columns), (group + depth * rank,), (scratch_size,))
    )
    down, up, scale, low = added or (None, None, 1.0, None)
    factors = [x.T if turned and x is not None else x for x in (right, down, up)]
    sizes = (rows * depth, depth * columns, columns, rows * columns, depth * rank, rank * columns,
             rows * rank, packed.numel(), scratch_size)  # fmt: skip
    tensors = (left, factors[0], bias, output, *factors[1:], low, packed, scratch)
    addresses = [
        None if x is None else simd.address(x, bf16, size)
        for x, size in zip(tensors, sizes, strict=True)
    ]
    simd.call("product", left, *addresses[:4], rows, depth, columns, turned, *addresses[4:7],
              rank, float(scale), *addresses[7:])  # fmt: skip
    return output


def fits_tiles(outputs: int, inputs: int) -> bool:
    """Return True if the tiles support a weight of these sizes."""
    return outputs % MULTIPLE == 0 and inputs % MULTIPLE == 0


def product(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return left @ right + bias.

    Args:
        left: shape (..., depth).
        right: shape (depth, columns), of the same dtype.
        bias: shape (columns,), or a scalar; of the same dtype.
    """
    # the kernels need a contiguous bias; otherwise oneDNN reads beyond its end
    if bias is not None:
        bias = bias.expand(right.shape[1]).contiguous()
    if takes(left, right, bias):
        rows = left.flatten(0, -2).contiguous()
        deep = PANEL_ROWS * len(right) > PANEL and right.is_contiguous() and bias is None
        output = _deep_product(rows, right) if deep else product_on_tiles(rows, right, bias)
        return output.view(*left.shape[:-1], -1)
    if _fma_takes(left, right, bias):
        output = product_by_fma(left.flatten(0, -2).contiguous(), right, bias)
        return output.view(*left.shape[:-1], -1)
    if bias is None:
        return left @ right
    # on CPUs that Intel did not make, MKL is slower than oneDNN
    by_onednn = left.dtype == torch.bfloat16 or left.dtype == bias.dtype in fma_dtypes()
    if by_onednn and left.dtype == right.dtype and has_onednn_linear(left.dtype):
        return onednn_linear(left, right.T, bias)
    return torch_linear(left, right.T, bias.to(left.dtype))  # torch refuses other dtypes


def is_own(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return True if `product` computes a matmul in our own loops."""
    return takes(left, right, None) or _fma_takes(left, right, None)


def _fma_takes(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Return True if our multiply-adds compute this matmul; for bf16, oneDNN is equally fast."""
    if left.dtype != torch.float32 or left.dtype not in fma_dtypes() or right.ndim != 2:
        return False
    in_order = right.is_contiguous() or right.T.is_contiguous()
    fits = left.shape[-1] == len(right) and simd.are_alike(left, right, bias) and in_order
    large = left.numel() * right.shape[1] >= MUCH_WORK
    return fits and large and min(right.shape) >= NARROWEST


def _deep_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left @ right in several parts of the depth, for rows too long for the L2 cache."""
    sums = simd.empty(len(left), right.shape[1])
    weight_gradient_(left.T, right, sums, adds=False)
    return sums.to(left.dtype)


def takes(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None, narrowest: int = NARROWEST
) -> bool:
    """Return True if tiles support a matmul and its sizes make it worthwhile."""
    if right.ndim != 2:
        return False
    in_order = right.is_contiguous() or right.T.is_contiguous()
    # torch refuses other shapes: C would read beyond their end
    fits = left.shape[-1] == len(right) and fits_tiles(*right.shape)
    if left.dtype != torch.bfloat16 or not fits or not in_order:
        return False
    if not simd.are_alike(left, right, bias):
        return False
    large = min(right.shape) >= narrowest and left.numel() >= FEWEST_ROWS * left.shape[-1]
    return large and has_amx()


def takes_adapter(
    left: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None,
    down: torch.Tensor,
    up: torch.Tensor,
) -> bool:
    """Return True if tiles support a matmul with an adapter, see `product_with_adapter`."""
    turned, rank = not right.is_contiguous(), up.shape[0]
    fits = down.shape == (right.shape[0], rank) and up.shape == (rank, right.shape[1])
    fits = fits and down.dtype == up.dtype == right.dtype
    fits = fits and all((x.T if turned else x).is_contiguous() for x in (down, up))
    return fits and takes(left, right, bias, NARROWEST_WITH_ADAPTER)


def product_with_adapter(
    left: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None,
    down: torch.Tensor,
    up: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left @ right + bias + low @ up, and low = scale * left @ down.

    Args:
        left: shape (rows, depth).
        right: shape (depth, columns).
        bias: shape (columns,), or a scalar; see `product`.
        down, up: shapes (depth, rank) and (rank, columns). For tiles they are stored in the order
            of `right`, and the rank is a multiple of MULTIPLE.
    """
    if down.shape[1] % MULTIPLE == 0 and takes_adapter(left, right, bias, down, up):
        low = left.new_empty(len(left), down.shape[1])
        bias = None if bias is None else bias.expand(right.shape[1]).contiguous()
        added = LowRank(down, up, scale, low)
        return product_on_tiles(left.contiguous(), right, bias, added), low
    low = (left @ down).mul_(scale)
    return product(left, right, bias).addmm_(low, up), low


def product_of_columns(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left.T @ right, shapes (rows, outputs) and (rows, inputs); our loops return fp32."""
    outputs, inputs = left.shape[1], right.shape[1]
    if left.dtype != right.dtype or not has_sums(left.dtype, outputs, inputs):
        return left.T @ right
    sums = simd.empty(outputs, inputs)
    add_columns(left, right, sums, adds=False)
    return sums


def has_sums(dtype: torch.dtype, outputs: int, inputs: int) -> bool:
    """Return True if `add_columns` supports factors of a dtype for a weight of these sizes."""
    tiles = dtype == torch.bfloat16 and fits_tiles(outputs, inputs) and has_amx()
    return dtype == torch.float32 or dtype in fma_dtypes() or tiles


def add_columns(left: torch.Tensor, right: torch.Tensor, sums: torch.Tensor, adds: bool) -> None:
    """Compute the gradient of a linear layer's weight, left.T @ right.

    Args:
        left, right: shapes (rows, outputs) and (rows, inputs), of a dtype that `has_sums` accepts.
        sums: output, contiguous fp32, shape (outputs, inputs), aligned to a cache line.
        adds: True to add the result to `sums`.
    """
    small = left.numel() * right.shape[1] < MUCH_WORK or min(sums.shape) < NARROWEST
    if left.dtype == torch.float32 and (small or left.dtype not in fma_dtypes()):
        if adds:
            sums.addmm_(left.T, right)
        else:
            torch.mm(left.T, right, out=sums)
    elif not len(left):
        if not adds:
            sums.zero_()
    elif left.dtype in fma_dtypes():
        product_by_fma(left.contiguous().T, right.contiguous(), sums=sums, adds=adds)
    else:
        weight_gradient_(left.contiguous(), right.contiguous(), sums, adds)
