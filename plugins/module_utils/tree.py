# Apache-2.0 (see LICENSE)
"""Hashes files, and all files of a folder, identically on the control node and on hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLOCK_BYTES = 1 << 20


def file_sha256(path: Path) -> Any:
    """Return the SHA-256 of a file, as hashlib's object; Python 3.8 has no hashlib.file_digest."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest


def tree_sha256(files: Mapping[bytes, bytes]) -> str:
    """Return the SHA-256 of the names and contents of files, as hexadecimal digits.

    Args:
        files: SHA-256 of each file's contents, as 32 bytes, by the name in the folder as bytes.
    """
    digest = hashlib.sha256()
    for name, contents in sorted(files.items()):
        digest.update(name + b"\0" + contents)  # a name may have any byte except this one and /
    return digest.hexdigest()
