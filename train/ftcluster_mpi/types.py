"""Maps torch's tensors, reductions and calls to MPI.

This package initializes and finalizes MPI instead of mpi4py. By default, mpi4py would call
MPI_Finalize in every process that ends, and a failed rank would wait there for ranks that wait for
the failed rank.
"""

from collections.abc import Sequence
from typing import Any

import mpi4py
import torch
import torch.distributed as dist

mpi4py.rc.initialize = mpi4py.rc.finalize = False

from mpi4py import MPI as MPI  # noqa: E402 - the import acts on the settings above

INTEL_BFLOAT16 = 0x4C000247  # MPIX_C_BF16 in mpi.h of Intel MPI 2021.18; MPI 5 defines bf16 itself

TYPES = {
    torch.float64: MPI.DOUBLE, torch.float32: MPI.FLOAT, torch.float16: MPI.FLOAT16_T,
    torch.bfloat16: MPI.BFLOAT16_T, torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX, torch.int64: MPI.INT64_T, torch.int32: MPI.INT32_T,
    torch.int16: MPI.INT16_T, torch.int8: MPI.INT8_T, torch.uint8: MPI.UINT8_T,
    torch.bool: MPI.UINT8_T,
}  # fmt: skip
if TYPES[torch.bfloat16] == MPI.DATATYPE_NULL and MPI.get_vendor()[0] == "Intel MPI":
    TYPES[torch.bfloat16] = MPI.Datatype.fromhandle(INTEL_BFLOAT16)  # see `check_bfloat16`
DTYPES = list(TYPES)

SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
OPERATORS = {
    SUM: MPI.SUM, AVG: MPI.SUM, dist.ReduceOp.PRODUCT: MPI.PROD, dist.ReduceOp.MIN: MPI.MIN,
    dist.ReduceOp.MAX: MPI.MAX, dist.ReduceOp.BAND: MPI.BAND, dist.ReduceOp.BOR: MPI.BOR,
    dist.ReduceOp.BXOR: MPI.BXOR,
}  # fmt: skip
KINDS = list(OPERATORS)
# for bytes that are 0 or 1, MAX and MIN mean "or" and "and"
OPERATORS_OF_BOOL = OPERATORS | {SUM: MPI.MAX, dist.ReduceOp.PRODUCT: MPI.MIN}

LEAVE = "no call, because it has left the group"
REFUSED = "a call with wrong arguments (that rank reports the error)"
CALLS = [
    LEAVE, REFUSED, "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
    "reduce_scatter", "all_to_all", "barrier",
]  # fmt: skip

Tensors = Sequence[torch.Tensor]


def kind_of(reduction: dist.ReduceOp) -> Any:
    """Return torch's reduction as a key of `OPERATORS`.

    Raises:
        ValueError: the backend does not support the reduction.
    """
    for kind in KINDS:
        if reduction == kind:
            return kind
    raise ValueError(f"the backend impi does not support the reduction {reduction}")


def check_bfloat16() -> None:
    """Disable bf16 reductions if MPI's type does not add bf16; MPI must be initialized."""
    if not adds_bfloat16(TYPES[torch.bfloat16]):
        TYPES[torch.bfloat16] = MPI.DATATYPE_NULL


def adds_bfloat16(kind: MPI.Datatype) -> bool:
    """Return True if MPI adds values of this MPI type as bf16."""
    values = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    others = torch.tensor([2.25, 0.5], dtype=torch.bfloat16)
    sums = others.clone()
    try:
        if kind == MPI.DATATYPE_NULL or kind.Get_size() != values.itemsize:
            return False
        MPI.SUM.Reduce_local([_memory(values), len(values), kind], [_memory(sums), len(sums), kind])
    except MPI.Exception:
        return False
    same: bool = torch.equal(sums, values + others)
    return same


def operator_of(kind: Any, dtype: torch.dtype) -> MPI.Op:
    """Return MPI's operator for a reduction of tensors of this dtype.

    Raises:
        ValueError: MPI cannot reduce the dtype.
    """
    if TYPES.get(dtype, MPI.DATATYPE_NULL) == MPI.DATATYPE_NULL:
        raise ValueError(f"MPI cannot reduce {dtype}")
    return (OPERATORS_OF_BOOL if dtype == torch.bool else OPERATORS)[kind]


def as_elements(tensor: torch.Tensor) -> list[Any]:
    """Return the memory of a contiguous tensor as typed elements, for reductions."""
    return [_memory(tensor), TYPES[tensor.dtype]]


def as_bytes(tensor: torch.Tensor) -> list[Any]:
    """Return the memory of a contiguous tensor as bytes, for collectives that move data."""
    return [_memory(tensor), MPI.BYTE]


def as_parts(tensor: torch.Tensor, elements: list[int]) -> list[Any]:
    """Return the memory of a contiguous tensor as bytes, in one part for each rank."""
    counts = [count * tensor.element_size() for count in elements]
    return [_memory(tensor), counts, MPI.BYTE]


def _memory(tensor: torch.Tensor) -> Any:
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def signature(
    call: str, data: torch.Tensor | None = None, kind: Any = None, root: int = -1
) -> tuple[int, ...]:
    """Return the properties of a call that must be equal on all ranks, as numbers."""
    return (
        CALLS.index(call),
        -1 if data is None else DTYPES.index(data.dtype),
        0 if data is None else data.numel(),
        -1 if kind is None else KINDS.index(kind),
        root,
    )


def describe(values: Sequence[int]) -> str:
    """Return a description of a signature, for messages.

    >>> describe(signature("all_reduce", torch.zeros(3), dist.ReduceOp.SUM))
    'all_reduce (sum) of 3 float32'
    """
    call, dtype, elements, kind, root = values
    text = CALLS[call]
    if kind >= 0:
        text += f" ({KINDS[kind].name.lower()})"
    if dtype >= 0:
        number = f"{elements} " if elements >= 0 else ""
        text += f" of {number}{str(DTYPES[dtype]).removeprefix('torch.')}"
    if root >= 0:
        text += f", root {root}"
    return text


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if MPI can read it, else a contiguous copy.

    Raises:
        ValueError: the tensor is not a dense tensor in CPU memory.
    """
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"the backend impi supports only dense CPU tensors, got {tensor.layout} on "
            f"{tensor.device}"
        )
    return tensor.detach().contiguous()


def empty_for(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if MPI can write to it, else a buffer to copy from."""
    return (
        tensor.detach()
        if tensor.is_contiguous()
        else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    )


def apart_from(data: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the result of `empty_for`, or a new buffer if that shares memory with `data`."""
    shared = tensor.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
    return torch.empty_like(tensor) if shared else empty_for(tensor)


def flat(tensors: Tensors) -> torch.Tensor:
    """Return the elements of all tensors as one flat tensor."""
    return torch.cat([contiguous(tensor).view(-1) for tensor in tensors])


def unflatten(
    tensors: Tensors, parts: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of a tensor and the part of the flat tensor that belongs in it."""
    return list(zip(tensors, parts, strict=True))


def elements_of(tensor: torch.Tensor, rows: Sequence[int], ranks: int) -> list[int]:
    """Return the number of elements in each rank's part.

    Args:
        rows: number of rows for each rank; empty if all parts are equal.

    Raises:
        ValueError: the sizes of the parts do not add up to the size of the tensor.
    """
    have = tensor.shape[0] if tensor.dim() else 1
    if not rows:
        if have % ranks:
            raise ValueError(f"{have} rows cannot be divided equally among {ranks} ranks")
        rows = [have // ranks] * ranks
    if len(rows) != ranks or sum(rows) != have:
        raise ValueError(
            f"the splits {list(rows)} must be {ranks} numbers whose sum is {have} rows"
        )
    row = tensor.numel() // have if have else 0
    return [count * row for count in rows]


def require_equal(what: str, elements: int, other: str, expected: int) -> None:
    """Check that a tensor has the expected number of elements.

    Args:
        what: name of the tensor, for the message.
        other: meaning of `expected`, for the message.

    Raises:
        ValueError: the number of elements differs from `expected`.
    """
    if elements != expected:
        raise ValueError(f"the {what} has {elements} elements, but must have {expected} ({other})")


def counts_of_sparse(headers: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of elements of each rank's sparse tensor.

    Args:
        headers: element count, number of sparse dimensions, and shape of the tensor on each rank.

    Raises:
        DistBackendError: the tensors differ in shape or in the number of sparse dimensions.
    """
    if any(numbers[1:] != headers[0][1:] for numbers in headers):
        raise dist.DistBackendError(
            f"the ranks differ in the shape or the sparse dimensions of a sparse tensor; element "
            f"count, sparse dimensions and shape by rank: {headers}"
        )
    return [numbers[0] for numbers in headers]


def set_sparse(
    tensor: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, divisor: int
) -> None:
    """Set a sparse tensor to the sum of the elements, divided by `divisor`.

    Args:
        indices: shape (elements, sparse dimensions); elements with equal indices are summed.
    """
    values = values / divisor if divisor != 1 else values
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
    with torch.no_grad():  # detach() would return a tensor with separate indices and values
        tensor.copy_(total)
