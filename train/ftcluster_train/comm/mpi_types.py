"""torch's types and reductions in MPI's terms."""

from typing import Any

import torch
import torch.distributed as dist

from ftcluster_train.comm.mpi_library import MPI

INTEL_BFLOAT16 = 0x4C000247  # MPIX_C_BF16 in the mpi.h of Intel MPI 2021.18; MPI 5 has a type

TYPES = {
    torch.float64: MPI.DOUBLE, torch.float32: MPI.FLOAT, torch.float16: MPI.FLOAT16_T,
    torch.bfloat16: MPI.BFLOAT16_T, torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX, torch.int64: MPI.INT64_T, torch.int32: MPI.INT32_T,
    torch.int16: MPI.INT16_T, torch.int8: MPI.INT8_T, torch.uint8: MPI.UINT8_T,
    torch.bool: MPI.UINT8_T,
}  # fmt: skip
if TYPES[torch.bfloat16] == MPI.DATATYPE_NULL and MPI.get_vendor()[0] == "Intel MPI":
    TYPES[torch.bfloat16] = MPI.Datatype.fromhandle(INTEL_BFLOAT16)
DTYPES = list(TYPES)

SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
OPERATORS = {
    SUM: MPI.SUM, AVG: MPI.SUM, dist.ReduceOp.PRODUCT: MPI.PROD, dist.ReduceOp.MIN: MPI.MIN,
    dist.ReduceOp.MAX: MPI.MAX, dist.ReduceOp.BAND: MPI.BAND, dist.ReduceOp.BOR: MPI.BOR,
    dist.ReduceOp.BXOR: MPI.BXOR,
}  # fmt: skip
KINDS = list(OPERATORS)
# of bytes that are 0 or 1, these are "or" and "and"
OPERATORS_OF_BOOL = OPERATORS | {SUM: MPI.MAX, dist.ReduceOp.PRODUCT: MPI.MIN}


def kind_of(reduction: dist.ReduceOp) -> Any:
    """torch's reduction as a member of `OPERATORS`.

    Raises:
        ValueError: the backend does not have it.
    """
    for kind in KINDS:
        if reduction == kind:
            return kind
    raise ValueError(f"this backend has no {reduction}")


def operator_of(kind: Any, dtype: torch.dtype) -> MPI.Op:
    """MPI's operator for a reduction of tensors of this type.

    Raises:
        ValueError: MPI has none.
    """
    if TYPES.get(dtype, MPI.DATATYPE_NULL) == MPI.DATATYPE_NULL:
        raise ValueError(f"MPI cannot reduce {dtype}")
    return (OPERATORS_OF_BOOL if dtype == torch.bool else OPERATORS)[kind]


def as_elements(tensor: torch.Tensor) -> list[Any]:
    """The memory of a contiguous tensor, for reductions."""
    return [_memory(tensor), TYPES[tensor.dtype]]


def as_bytes(tensor: torch.Tensor) -> list[Any]:
    """The memory of a contiguous tensor, which MPI moves without looking at it."""
    return [_memory(tensor), MPI.BYTE]


def as_parts(tensor: torch.Tensor, elements: list[int]) -> list[Any]:
    """The memory of a contiguous tensor in parts, one for each rank."""
    counts = [count * tensor.element_size() for count in elements]
    return [_memory(tensor), counts, MPI.BYTE]


def _memory(tensor: torch.Tensor) -> Any:
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
