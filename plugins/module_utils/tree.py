# Apache-2.0 (see LICENSE)
"""Hashes files, and all files of a folder, identically on the control node and on hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLOCK_BYTES = 1 << 20


def file_sha256(path: Path) -> Any:
    """Return the SHA-256 of a file as a hashlib object, as hashlib.file_digest in Python 3.11."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest


def tree_sha256(files: Mapping[bytes, bytes]) -> str:
    """Return the SHA-256 of the names and contents of files, as hexadecimal digits.

    Args:
        files: SHA-256 (32 bytes) of each file's contents, by the path in the folder (bytes).
    """
    digest = hashlib.sha256()
    for name, contents in sorted(files.items()):
        digest.update(name + b"\0" + contents)  # a name may contain any byte except NUL and /
    return digest.hexdigest()
