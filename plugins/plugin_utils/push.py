# Apache-2.0 (see LICENSE)
"""Streams files from the control node to a host, as the task's become user.

Ansible's file transfer first writes the files as the login user. If the task becomes another
ordinary user, this requires ACLs or open permissions. Streaming to a command's stdin needs neither,
and it needs no disk space for a copy.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import tarfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from ansible.errors import AnsibleActionFail
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import execute
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.source_files import open_file

CHUNK_BYTES = 32 * 1024 * 1024  # bytes in memory for each host


def push_files(
    action: Any,
    files: Iterable[tuple[Path, str]],
    folder: str,
    on_bytes: Callable[[int], None] = lambda _: None,
    hashed: bool = True,
) -> dict[bytes, bytes]:
    """Write files into a new folder on the host, which only the task's user can read.

    Small files are sent together as a tar, large files in pieces.

    Args:
        action: action plugin that sends the files.
        files: path and name in the new folder of each file. Paths must not contain links.
        folder: path of the new folder on the host.
        on_bytes: function that is called after each sent piece with its size in bytes.
        hashed: False if the caller does not need the hashes.

    Returns:
        The SHA-256 (32 bytes) of each file's sent contents, by the file's name (bytes); empty
        without `hashed`.

    Raises:
        AnsibleActionFail: the host cannot write the files or already has the folder, or a file
            cannot be read here.
    """
    try:
        return _push(action, files, folder, on_bytes, hashed)
    except OSError as error:
        raise AnsibleActionFail(f"{error.filename} cannot be sent: {error.strerror}") from error


def _push(
    action: Any,
    files: Iterable[tuple[Path, str]],
    folder: str,
    on_bytes: Callable[[int], None],
    hashed: bool,
) -> dict[bytes, bytes]:
    there, parent = shlex.quote(folder), shlex.quote(folder.rpartition("/")[0] or "/")
    # create the folder together with the first files, because each command costs a round trip
    make = f"(umask 022 && mkdir -p {parent}) && mkdir -m 0700 {there} && "
    unpack = f"tar -x -f - -C {there}"
    digests: dict[bytes, bytes] | None = {} if hashed else None
    batch: list[tuple[Path, str]] = []
    size = 0
    for path, name in files:
        with open_file(path) as file:
            length = os.fstat(file.fileno()).st_size
        if length >= CHUNK_BYTES:
            target = f"{folder}/{name}"
            digest = _push_large(action, path, target, make, on_bytes, hashed)
            if digests is not None:
                digests[os.fsencode(name)] = digest
            make = ""
            continue
        if size + length > CHUNK_BYTES:
            _run(action, make + unpack, tar_of(batch, digests), folder)
            on_bytes(size)
            make, batch, size = "", [], 0
        batch.append((path, name))
        size += length
    if batch:
        _run(action, make + unpack, tar_of(batch, digests), folder)
        on_bytes(size)
    elif make:
        _run(action, f"{make}true", b"", folder)
    return digests or {}


def tar_of(files: Iterable[tuple[Path, str]], digests: dict[bytes, bytes] | None) -> bytes:
    """Return an uncompressed tar of (path, name in the tar) pairs.

    Args:
        digests: dictionary that receives the SHA-256 of each file; None if nobody needs them.
    """
    buffer = io.BytesIO()
    # in the default format, GNU tar reads names as UTF-8 and converts them to the host's locale
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, name in files:
            entry = tarfile.TarInfo(name)
            with open_file(path) as file:
                contents = file.read()
                entry.mode = _mode(file)
            entry.size = len(contents)
            tar.addfile(entry, io.BytesIO(contents))
            if digests is not None:
                digests[os.fsencode(name)] = hashlib.sha256(contents).digest()
    return buffer.getvalue()


def _mode(file: IO[bytes]) -> int:
    """Return the permissions of a file, without write permission for other users."""
    return os.fstat(file.fileno()).st_mode & 0o755 | 0o600


def _push_large(
    action: Any, path: Path, target: str, make: str, on_bytes: Callable[[int], None], hashed: bool
) -> bytes:
    place = shlex.quote(target)
    digest = hashlib.sha256()
    # hash a piece on one core while other cores send it
    with open_file(path) as file, ThreadPoolExecutor(1) as pool:
        start = f'mkdir -p "$(dirname {place})" && : > {place} && chmod {_mode(file):o} {place} && '
        while part := file.read(CHUNK_BYTES):
            hashing = pool.submit(digest.update, part) if hashed else None
            _run(action, f"{make}{start}cat >> {place}", part, target)
            if hashing:
                hashing.result()
            on_bytes(len(part))
            make = start = ""
    return digest.digest()


def _run(action: Any, command: str, data: bytes, place: str) -> None:
    done = execute(action, command, data)
    if done["rc"] != 0:
        words = (done.get("stderr") or done.get("stdout") or "").strip()
        raise AnsibleActionFail(f"{place} cannot be written: {words}")
