# Apache-2.0 (see LICENSE)
"""One hash of all files of a folder, the same on the control node and on a host."""

from __future__ import annotations

import hashlib


def tree_sha256(files):
    """The SHA-256 of the names and contents of files, as hexadecimal digits.

    Args:
        files: the SHA-256 of each file's contents, as 32 bytes, by its name in the folder as bytes.
    """
    digest = hashlib.sha256()
    for name, contents in sorted(files.items()):
        digest.update(name + b"\0" + contents)  # a name may have any byte but this one and /
    return digest.hexdigest()
