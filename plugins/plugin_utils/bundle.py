# Apache-2.0 (see LICENSE)
"""Bundles: all wheels of a stack in one file, for control nodes without a package index.

A bundle is a tar file that contains bundle.json and then the wheels. The tar is not compressed,
because wheels are compressed already.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import LockError
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.sizes import free_and_needed
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    Wheel,
    Wheelhouse,
    finish,
    read_wheelhouse,
)

HEAD = "bundle.json"
FORMAT = 1
UNPACKED = re.compile(r"bundle-.+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+")  # folder in the cache
HEAD_BYTES = 4 << 20
MAX_WHEELS = 10_000
MAX_NAME_BYTES = 64 << 10  # maximum size of a header that contains the name of the next entry
PIECE_BYTES = 1 << 20
SHA256 = re.compile(r"[0-9a-f]{64}")


class BundleError(Exception):
    """A bundle cannot be written or used; the message contains the reason and advice."""


class BundleMember(tarfile.TarInfo):
    """An entry of a bundle: a file, or a header with a long name and then a file."""

    @classmethod
    # the base class calls this argument tarfile, which is the module here
    def fromtarfile(cls, tar: tarfile.TarFile) -> BundleMember:  # pylint: disable=arguments-renamed
        """Check a header before tarfile reads data or allocates memory for the header's sizes.

        Raises:
            ValueError: the entry is a link, a device, a sparse file, or has too long a name.
        """
        start = tar.fileobj.tell()
        header = _header(tar)
        if header.type == tarfile.XHDTYPE and header.size <= MAX_NAME_BYTES:
            blocks = -(-header.size // tarfile.BLOCKSIZE)
            tar.fileobj.seek(start + (1 + blocks) * tarfile.BLOCKSIZE)
            with contextlib.suppress(tarfile.HeaderError):  # the error is reported below
                header = _header(tar)
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise ValueError(f"{header.name[:200]!a} is not a plain file")
        tar.fileobj.seek(start)
        return super().fromtarfile(tar)


def _header(tar: tarfile.TarFile) -> tarfile.TarInfo:
    """Return the header at the current position of a tar, without reading further entries."""
    buffer = tar.fileobj.read(tarfile.BLOCKSIZE)
    return tarfile.TarInfo.frombuf(buffer, tar.encoding, tar.errors)


@dataclass(frozen=True)
class Bundle:
    """The contents of a bundle.

    Attributes:
        digest: digest of the stack's lock.
        target: platform that hosts must have.
        house: wheelhouse with the wheels; they are or will be unpacked into its folder.
    """

    stack: str
    digest: str
    target: Target
    house: Wheelhouse


def write_bundle(bundle: Bundle, path: Path) -> None:
    """Write a bundle atomically.

    Raises:
        BundleError: the file cannot be written.
    """
    head = {
        "format": FORMAT,
        "stack": bundle.stack,
        "digest": bundle.digest,
        "target": vars(bundle.target),
        **bundle.house.to_dict(),
    }
    head["sha256"] = sha256_of_head(head)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o644)  # permissions within the umask
        try:
            with os.fdopen(descriptor, "wb") as file:
                with tarfile.open(fileobj=file, mode="w") as tar:
                    text = json.dumps(head, indent=1).encode()
                    entry = tarfile.TarInfo(HEAD)
                    entry.size = len(text)
                    tar.addfile(entry, io.BytesIO(text))
                    for wheel in bundle.house.files:
                        entry = tarfile.TarInfo(wheel.name)
                        entry.size = wheel.stat().st_size
                        with wheel.open("rb") as source:
                            tar.addfile(entry, source)
                file.flush()
                os.fsync(file.fileno())
            name.replace(path)
        finally:
            name.unlink(missing_ok=True)
    except OSError as error:
        raise BundleError(f"{error.filename or path}: {error.strerror}") from error


def open_bundle(path: Path, cache: Path) -> Bundle:
    """Unpack a bundle into the cache if it is not there, and verify all files.

    Raises:
        BundleError: the file is damaged or not a bundle; nothing of it is kept.
    """
    try:
        status = path.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise BundleError(f"{path} is not a file")  # opening a pipe would block
        # saves reading gigabytes again; a changed file has another modification time
        key = f"{path.name}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"
        folder = cache / f"bundle-{key}"
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with tarfile.open(path, "r:", tarinfo=BundleMember) as tar:
                bundle = read_head(tar, path, folder)
                house = read_wheelhouse(folder)
                if sum(wheel.size for wheel in bundle.house.wheels.values()) > status.st_size:
                    raise ValueError("the sizes in its list exceed the size of the file")
                if house is None or house.wheels != bundle.house.wheels:
                    unpack(tar, bundle)
            return bundle
    except (
        tarfile.TarError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
        OverflowError,
    ) as error:  # fmt: skip
        raise BundleError(f"{path} is damaged or not a bundle ({error}); {AGAIN}") from error
    except OSError as error:
        raise BundleError(f"{error.filename or path}: {error.strerror}") from error


def hold(bundle: Bundle, path: object, wanted: Wanted) -> None:
    """Compare a bundle with the lock of this version.

    Raises:
        BundleError: the bundle contains packages or files that the lock does not allow; the message
            names all of them.
    """
    if bundle.digest != wanted.digest:
        raise BundleError(
            f"{path} was made for another version of ftcluster: the digest of its package list for "
            f"stack {bundle.stack} is {bundle.digest}, but this version's digest is "
            f"{wanted.digest}; rebuild the bundle with this version: ftcluster bundle"
        )
    try:
        problems = wanted.problems(bundle.house.sha256, bundle.target.python)
    except LockError as error:
        raise BundleError(f"{wanted.name}: {error}") from error
    if problems:
        shutil.rmtree(bundle.house.folder, ignore_errors=True)
        raise BundleError(
            f"{path} does not match the lock:\n" + "\n".join(problems) + "\nrebuild it where "
            "an index can be reached (ftcluster bundle), and find out who could change this file"
        )


def is_unpacked(folder: Path, cache: Path) -> bool:
    """Return True if `open_bundle` created a folder, which may therefore be removed."""
    return folder.parent == cache and bool(UNPACKED.fullmatch(folder.name))


AGAIN = "copy it again, or rebuild it with ftcluster bundle"


def sha256_of_head(head: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a bundle's description, as hexadecimal digits."""
    rest = {key: value for key, value in head.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_head(tar: tarfile.TarFile, path: Path, folder: Path) -> Bundle:
    """Read the description of a bundle, which is the first file in the tar.

    Raises:
        ValueError: the file is not a bundle, or has a format that this version cannot read.
        BundleError: a newer ftcluster has written the bundle.
    """
    entry = tar.next()
    if entry is None or entry.name != HEAD or entry.sparse is not None or entry.size > HEAD_BYTES:
        raise ValueError(f"it does not begin with {HEAD}")
    head = json.loads(_contents(tar, entry).read())
    if head["format"] != FORMAT:
        if isinstance(head["format"], int) and head["format"] > FORMAT:
            raise BundleError(
                f"{path} was written by a newer ftcluster (format {head['format']!a:.40}, this "
                f"one reads {FORMAT}): upgrade this ftcluster, or rebuild the bundle with it"
            )
        raise ValueError(f"its format is {head['format']!a:.40}, but this ftcluster reads {FORMAT}")
    if head["sha256"] != sha256_of_head(head):
        raise ValueError(f"the checksum of {HEAD} is wrong")
    wheels = {name: Wheel(**wheel) for name, wheel in head["wheels"].items()}
    if any("/" in name or "\0" in name or not name.endswith(".whl") for name in wheels):
        raise ValueError("it lists files that are not wheels")
    if len(wheels) > MAX_WHEELS:
        raise ValueError(f"it lists more than {MAX_WHEELS:,} wheels")
    for name, wheel in wheels.items():
        sizes = (wheel.size, wheel.unpacked)
        if any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in sizes) or not (
            isinstance(wheel.sha256, str) and SHA256.fullmatch(wheel.sha256)
        ):
            raise ValueError(f"the size or the SHA-256 of {name!a} in its list is invalid")
    house = Wheelhouse(folder, wheels, tuple(head["notices"]))
    return Bundle(head["stack"], head["digest"], Target(**head["target"]), house)


def unpack(tar: tarfile.TarFile, bundle: Bundle) -> None:
    """Unpack and verify the wheels; rename the folder after all wheels are valid.

    Raises:
        ValueError: a file is missing, unexpected or different; the message names it.
        BundleError: the disk is full.
    """
    folder = bundle.house.folder
    shutil.rmtree(folder, ignore_errors=True)
    needed = sum(wheel.size for wheel in bundle.house.wheels.values())
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        available, required = free_and_needed(free, needed)
        raise BundleError(
            f"the bundle's wheels need {required} in {folder.parent} on the control "
            f"node, but only {available} are free; free some space, or set torch_stack_cache to a "
            f"folder with more space"
        )
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        missing = dict(bundle.house.wheels)
        for entry in tar:
            if entry.offset == 0:
                continue
            wheel = missing.pop(entry.name, None)
            if wheel is None or entry.sparse is not None:
                raise ValueError(f"{entry.name!a} is not in its list")
            if entry.size != wheel.size:
                raise ValueError(
                    f"{entry.name} has {entry.size:,} bytes, but its list says {wheel.size:,}"
                )
            digest = copy(_contents(tar, entry), scratch / entry.name)
            if digest != wheel.sha256:
                raise ValueError(
                    f"the SHA-256 of {entry.name} is {digest}, but its list says {wheel.sha256}"
                )
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} is missing")
        finish(scratch, bundle.house)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _contents(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(entry)
    if file is None:
        raise ValueError(f"{entry.name[:200]!a} is not a plain file")
    return file


def copy(source: IO[bytes], path: Path) -> str:
    """Write the bytes of an entry to a file, and return their SHA-256."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        while piece := source.read(PIECE_BYTES):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()
