# Apache-2.0 (see LICENSE)
"""The wheels of an environment, downloaded once on the control node for all hosts."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    DownloadError,
    Pip,
    Sources,
    Target,
    needs,
    size_of,
    unpacked_bytes,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import (
    LockError,
    Pin,
    read_lock,
    sizes,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.sizes import free_and_needed
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

MANIFEST = "wheels.json"
FORMAT = 1  # format of MANIFEST; a wheelhouse with another format is downloaded again
ALLOW = (
    "add the hash, or accept unverified files with virtualenv_allow_unverified, or for a stack "
    "with torch_stack_allow_unverified (--allow-unverified)"
)
SPARE_BYTES = 100_000_000  # in addition to the wheels


Report = Callable[[str, float, float], None]


class WheelhouseError(Exception):
    """The wheels are not available; the message contains advice."""


@dataclass(frozen=True)
class Wheel:
    """One file of a wheelhouse.

    Attributes:
        unpacked: total size of the unpacked files in bytes.
        sha256: SHA-256 as hexadecimal digits.
    """

    size: int
    unpacked: int
    sha256: str


@dataclass(frozen=True)
class Wheelhouse:
    """The downloaded wheels of one list.

    Attributes:
        notices: warnings about the sources of the wheels.
    """

    folder: Path
    wheels: dict[str, Wheel]
    notices: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        """The paths of all wheels."""
        return [self.folder / name for name in sorted(self.wheels)]

    @property
    def sha256(self) -> dict[str, str]:
        """The SHA-256 of each file, by file name."""
        return {name: wheel.sha256 for name, wheel in self.wheels.items()}

    @property
    def wheel_bytes(self) -> int:
        """The bytes of all wheels."""
        return sum(wheel.size for wheel in self.wheels.values())

    @property
    def unpacked_bytes(self) -> int:
        """The bytes of the unpacked files."""
        return sum(wheel.unpacked for wheel in self.wheels.values())

    @property
    def host_bytes(self) -> int:
        """The bytes that a host needs for the wheels and the unpacked files."""
        return self.wheel_bytes + self.unpacked_bytes + SPARE_BYTES

    def to_dict(self) -> dict[str, Any]:
        """Return the document that read_wheelhouse reads."""
        wheels = {name: vars(wheel) for name, wheel in sorted(self.wheels.items())}
        return {"wheels": wheels, "notices": list(self.notices)}


@dataclass(frozen=True)
class Wanted:
    """The contents that a wheelhouse must have.

    Attributes:
        name: name of the list, for messages.
        lock: text of the lock; complete unless `resolve` is True.
        more: text of a second lock with packages that only some builds require.
        resolve: True if pip adds dependencies.
        allow_unverified: True if files without a hash are accepted.
    """

    name: str
    lock: str
    more: str = ""
    resolve: bool = False
    allow_unverified: bool = False

    @property
    def digest(self) -> str:
        """A digest of the contents."""
        return hashlib.sha256((self.lock + self.more).encode()).hexdigest()[:12]

    def folder(self, cache: Path, target: Target) -> Path:
        """Return the path of the wheelhouse for a target in a cache."""
        return cache / f"{self.name}-{self.digest}-{target.tag}"

    @property
    def host_bytes(self) -> int:
        """The minimum bytes that a host needs, from the sizes in the lock."""
        return sum(sizes(self.lock)) + SPARE_BYTES

    def problems(self, sha256: Mapping[str, str], python: str) -> list[str]:
        """Return the differences between the lists and some files.

        Args:
            sha256: SHA-256 of each file by file name.
            python: minor version of Python.

        Raises:
            LockError: a list has the wrong form.
        """
        pins, more = read_lock(self.lock, python), read_lock(self.more, python)
        wheels, found = {}, []
        for name in sorted(sha256):
            try:
                wheels[name] = parse_wheel_filename(name)[:2]
            except InvalidWheelFilename:
                found.append(f"{name} is not the name of a wheel")
        packages = {package for package, _version in wheels.values()}
        missing = pins | more if packages & more.keys() else pins
        for name, (package, version) in wheels.items():
            pin = missing.pop(package, None)
            if pin is None and not self.resolve:
                found.append(f"{name} is not in the list of versions")
            # 2.13.0+cpu is 2.13.0 for CPUs: a local version is a build of the same source
            elif pin and version.public != Version(pin.version).public:
                found.append(f"{name} is not {pin.version}, as the list of versions requires")
            elif pin and pin.hashes and sha256[name] not in pin.hashes:
                found.append(
                    f"the SHA-256 of {name}, {sha256[name]}, is not in the list of versions"
                )
            elif not (pin and pin.hashes) and not self.allow_unverified:
                found.append(f"{name} has no hash in the list of versions; {ALLOW}")
        if missing:
            found.append(f"{', '.join(sorted(missing))} is missing")
        return found


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_dir() -> Path:
    """Return the folder of all wheelhouses of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ftcluster" / "wheels"


def get_wheels(
    wanted: Wanted,
    target: Target,
    sources: Sources,
    cache: Path,
    report: Report = lambda _activity, _done, _total: None,
) -> Wheelhouse:
    """Return the wheelhouse with the wanted packages; download it if the cache does not have it.

    Only one process at a time downloads.

    Args:
        report: function that gets an activity, its bytes so far and all its bytes (0: not known).

    Raises:
        WheelhouseError: pip fails, a hash is wrong, or the disk is full.
    """
    try:
        folder = wanted.folder(cache, target)
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f".{folder.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("waiting for a download of the same packages", 0, 0)
                fcntl.flock(lock, fcntl.LOCK_EX)
            return read_wheelhouse(folder) or fill(folder, wanted, target, sources, report)
    except (DownloadError, LockError) as error:
        raise WheelhouseError(f"{wanted.name}: {error}") from error
    except OSError as error:
        raise WheelhouseError(
            f"{error.filename or cache}: {error.strerror}; set virtualenv_cache to a writable "
            "folder on the control node that has enough space"
        ) from error


def read_wheelhouse(folder: Path) -> Wheelhouse | None:
    """Return the wheelhouse in a folder, or None if it is missing or incomplete."""
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if document.get("format", 0) not in (0, FORMAT):
            return None
        wheels = {name: Wheel(**wheel) for name, wheel in document["wheels"].items()}
        if any("/" in name for name in wheels):
            return None  # a path would lead out of the folder
        if any((folder / name).stat().st_size != wheel.size for name, wheel in wheels.items()):
            return None
        return Wheelhouse(folder, wheels, tuple(document["notices"])) if wheels else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None  # the wheelhouse is missing or damaged


def verify(house: Wheelhouse, wanted: Wanted, python: str, made_here: bool) -> None:
    """Compare a wheelhouse and its files with the lists.

    Args:
        made_here: True if the folder belongs to the cache; such a folder is removed if it differs
            from the lists. A folder that the user named is kept.

    Raises:
        WheelhouseError: files differ; the message names all of them.
    """
    try:
        problems = wanted.problems(house.sha256, python)
        problems += [
            f"{path.name} has changed since its download"
            for path in house.files
            if sha256_of(path) != house.wheels[path.name].sha256
        ]
    except LockError as error:
        raise WheelhouseError(f"{wanted.name}: {error}") from error
    except OSError as error:  # the process for another host has already removed the folder
        problems.append(f"{error.filename}: {error.strerror}")
    if problems and made_here:
        shutil.rmtree(house.folder, ignore_errors=True)
        advice = f"{house.folder} was removed, nothing was sent; run this again"
    else:
        advice = f"nothing was sent; replace these files of {house.folder}, or name another folder"
    if problems:
        raise WheelhouseError("\n".join([*problems, advice]))


def fill(
    folder: Path, wanted: Wanted, target: Target, sources: Sources, report: Report
) -> Wheelhouse:
    """Download the wheels into a new folder, and rename the folder when it is complete."""
    shutil.rmtree(folder, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        total = sizes(wanted.lock)[0]
        pip = Pip(
            target, sources, scratch, lambda done: report("downloading packages", done, total)
        )
        pins = read_lock(wanted.lock, target.python)
        check_space(scratch, wanted.lock, wanted.name)
        there = set() if wanted.resolve else link_known(scratch, pins, target)
        missing = [pin for name, pin in pins.items() if name not in there]
        report("downloading packages", size_of(scratch), total)
        refused = pip.download(missing, wanted.resolve)
        notices = []
        more = read_lock(wanted.more, target.python)
        if needs(scratch, more.keys(), target.python):
            check_space(scratch, wanted.more, wanted.name)
            pip.download(more.values())
            notices.append(larger_build(scratch, more, refused))
        house = Wheelhouse(folder, check(scratch, wanted, target.python), tuple(notices))
        finish(scratch, house)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return house


def link_known(scratch: Path, pins: Mapping[str, Pin], target: Target) -> set[str]:
    """Link wheels from other wheelhouses of the cache, if the lock allows their hashes.

    Wheels for an older C library than the target's are linked too. Skip wheelhouses with notices,
    because a better source may be available now.

    Args:
        scratch: folder that receives the links.
        pins: packages of the lock.
        target: Python and C library of the hosts. A lock also has hashes of wheels for other
            targets.

    Returns:
        The names of the packages that were linked.
    """
    wanted = {digest: name for name, pin in pins.items() for digest in pin.hashes}
    found = set()
    for manifest in sorted(scratch.parent.glob(f"*-cp*/{MANIFEST}")):
        if not target.runs_wheels_of(manifest.parent.name):
            continue
        house = read_wheelhouse(manifest.parent)
        if house is None or house.notices:
            continue
        for name, wheel in house.wheels.items():
            package = wanted.get(wheel.sha256)
            if package is None or package in found:
                continue
            try:
                if sha256_of(house.folder / name) == wheel.sha256:
                    os.link(house.folder / name, scratch / name)
                    found.add(package)
            except OSError:
                continue  # if linking fails, the package is downloaded
    return found


def finish(scratch: Path, house: Wheelhouse) -> None:
    """Write the manifest of a complete wheelhouse and rename its folder."""
    with (scratch / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **house.to_dict()}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    shutil.rmtree(house.folder, ignore_errors=True)
    scratch.rename(house.folder)


def check_space(folder: Path, lock: str, name: str) -> None:
    """Check that a folder's disk has enough space for a download.

    Raises:
        WheelhouseError: the disk has too little space.
    """
    needed, free = sizes(lock)[0] + SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        available, required = free_and_needed(free, needed)
        raise WheelhouseError(
            f"{name}: {required} of wheels must be downloaded into {folder.parent} on the control "
            f"node, but only {available} are free; free some space, or set virtualenv_cache to a "
            f"folder with more space"
        )


def larger_build(folder: Path, more: Mapping[str, Pin], refused: Mapping[str, str]) -> str:
    """Return a warning that only torch's CUDA build, with additional packages, was available."""
    size = sum(
        path.stat().st_size
        for path in folder.glob("*.whl")
        if parse_wheel_filename(path.name)[0] in more
    )
    why = "; ".join(refused.values()) or "pip's configured source has no build without them"
    return (
        f"torch comes with {len(more)} CUDA packages that CPUs do not use ({size / 1e9:.1f} GB "
        "more to download and send to each host; for another Python on the hosts "
        "(ftcluster_python), there may be a CPU build), because the index of CPU builds failed: "
        f"{why}"
    )


def check(folder: Path, wanted: Wanted, python: str) -> dict[str, Wheel]:
    """Compare the downloaded files with the lists, and return the wheels by file name.

    Raises:
        WheelhouseError: files are missing, unexpected or have another hash; the message names all
            of them.
    """
    digests = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    problems = wanted.problems(digests, python)
    if problems:
        raise WheelhouseError(
            "\n".join(problems) + "\ncheck which index pip uses (pip config list)"
        )
    return {
        name: Wheel((folder / name).stat().st_size, unpacked_bytes(folder / name), digest)
        for name, digest in digests.items()
    }
