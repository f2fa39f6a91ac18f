"""Reads the names, dtypes and shapes of the tensors in a safetensors file. Standard library only.

Format: https://github.com/huggingface/safetensors#format
"""

import struct
from pathlib import Path
from typing import NamedTuple

from ftcluster_common.given_files import GivenFileError, parse_json

MOST = 1 << 48  # largest accepted dimension; products of dimensions then fit into a float
MOST_HEADER_BYTES = 100 << 20  # limit that the format itself sets
METADATA = "__metadata__"


class TensorEntry(NamedTuple):
    """The entry for a tensor in a file's header."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        """True if the elements are floating-point numbers."""
        return self.dtype.startswith(("F", "BF"))


def read_header(file: Path, whole: bool = True) -> dict[str, TensorEntry]:
    """Return the entries of all tensors in a safetensors file by name, without their values.

    Args:
        whole: True to check that the file contains the values of all tensors.

    Raises:
        GivenFileError: the file cannot be read, is incomplete, or is not a safetensors file.
    """
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > MOST_HEADER_BYTES:
                raise ValueError(f"its header would have {length:,} bytes")
            header = parse_json(stream.read(length).decode())
            size = max(0, stream.seek(0, 2) - 8 - length)
        tensors = {name: about for name, about in header.items() if name != METADATA}
        for name, about in tensors.items():
            begin, end = about["data_offsets"] if whole else (0, 0)
            if not 0 <= begin <= end <= size:
                raise ValueError(f"the values of {name[:100]!a} are not all in the file")
            if any(type(side) is not int or not 0 <= side < MOST for side in about["shape"]):
                raise ValueError(f"{name[:100]!a} has the shape {str(about['shape'])[:100]}")
        return {
            name: TensorEntry(str(about["dtype"]), tuple(about["shape"]))
            for name, about in tensors.items()
        }
    except OSError as error:
        raise GivenFileError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise GivenFileError(
            f"{file} is no complete safetensors file: {str(error)[:200]}"
        ) from error
