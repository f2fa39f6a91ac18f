"""Choose and download the packages that a script requires, once for all hosts."""

import fcntl
import hashlib
import json
import re
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.fetch_errors import redacted
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    CONFLICT,
    DownloadError,
    DownloadOutcome,
    Pip,
    Sources,
    pip_command,
    pip_version,
    requirements_in,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    Wheelhouse,
    WheelhouseError,
    cache_dir,
    check,
    finish,
    read_wheelhouse,
    sha256_of,
)
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.ask import HostStack
from ftcluster.launch.source_build import build_wheel
from ftcluster.user_script.requirements import Requirements

LOCK = "requirements.txt"  # file name in the folder with the wheels
BESIDE_TORCH = ("torchvision", "torchaudio")  # packages whose compiled code is linked with torch
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)")
OLDEST_PIP = Version("23.1")  # as in pyproject.toml
PINNED = "ftcluster"  # local version of the stack's packages in pip's input: 2.13.0+ftcluster


@dataclass(frozen=True)
class Layer:
    """An overlay of packages that extends a stack.

    Attributes:
        name: name of the overlay's folder on the hosts, with a digest of the stack and the wheels.
        stack: name of the stack.
        folder: local folder with the wheels, and with their list in the file LOCK.
        packages: versions of the overlay's packages by normalized name.
        size_bytes: total size of the wheels in bytes.
        notes: facts about the packages that the user should know.
    """

    name: str
    stack: str
    folder: Path
    packages: dict[str, str]
    size_bytes: int
    notes: tuple[str, ...] = ()

    def has_module(self, module: str) -> bool:
        """Return True if one of the packages contains a module's top-level package."""
        top = module.partition(".")[0]
        return any(name.startswith((f"{top}/", f"{top}.")) for name in self._files())

    def _files(self) -> Iterator[str]:
        for path in self.folder.glob("*.whl"):
            with zipfile.ZipFile(path) as wheel:
                yield from wheel.namelist()

    def document(self) -> dict[str, Any]:
        """Return the overlay for `--json` and for a run's record."""
        return {"name": self.name, "packages": self.packages, "bytes": self.size_bytes}


def make_layer(
    requirements: Requirements, wheels: Path | None, stack: HostStack, cache: Path | None = None
) -> Layer | None:
    """Return an overlay with the packages of a requirements file that the stack lacks.

    Return None if the stack lacks no package. If neither the file nor the stack has changed since
    the last call, the packages come from the cache.

    Args:
        requirements: content of the requirements file.
        wheels: folder with all required wheels; None to download the wheels.
        stack: the stack of the hosts.
        cache: folder of the cache; None for ftcluster's download cache.

    Raises:
        UsageError: the file needs another version of a package of the stack; lists all such
            packages.
        FtclusterError: pip finds no matching versions, or a package is not available.
    """
    cache = cache or cache_dir()
    python = stack.target.python
    if conflicts := requirements.conflicts(stack.packages, python):
        raise UsageError(
            f"packages of the stack {stack.name} cannot be replaced\n  " + "\n  ".join(conflicts),
            "remove the versions from the file, or set up a stack that contains them; to list the "
            "stacks: ftcluster stacks",
        )
    if not requirements.for_pip(stack.packages, False):
        return None
    try:
        cache.mkdir(parents=True, exist_ok=True)
        folder = cache / f"layer-{_key(requirements, wheels, stack)}-{stack.target.tag}"
        with (cache / f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            house = read_wheelhouse(folder) or _fill(folder, requirements, wheels, stack)
        return _layer(house, stack) if house.wheels else None
    except (DownloadError, WheelhouseError) as error:
        raise _failure(requirements.path, str(error), python) from error
    except OSError as error:
        raise FtclusterError(
            f"{error.filename or cache}: {error.strerror}",
            "free space there, or set XDG_CACHE_HOME to another folder",
        ) from error


def _key(requirements: Requirements, wheels: Path | None, stack: HostStack) -> str:
    """Return a digest of everything that determines which packages are chosen.

    The contents of package indexes are not included.
    """
    what = [
        *(requirements.for_pip(stack.packages, constraints) for constraints in (False, True)),
        requirements.options,
        {
            name: sorted(digests)
            for name, digests in requirements.hashes(stack.target.python).items()
        },
        [stack.name, stack.packages, stack.extras],
        sorted(path.name for path in wheels.glob("*.whl")) if wheels else None,
    ]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def _fill(
    folder: Path, requirements: Requirements, wheels: Path | None, stack: HostStack
) -> Wheelhouse:
    """Choose packages, download them, and store them in `folder` once all files are complete."""
    shutil.rmtree(folder, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        new, built = scratch / "new", scratch / "built"
        outcome, unbuilt = _download(scratch, requirements, wheels, stack)
        made_here = {path.name for path in built.iterdir()}
        lock = _lock(new, made_here, requirements, stack, outcome)
        wheels_found = check(new, Wanted(LOCK, lock), stack.target.python)
        (new / LOCK).write_text(lock, encoding="utf-8")
        notes = (
            *_notes(made_here & wheels_found.keys(), unbuilt),
            *_version_notes(new, requirements, stack, outcome),
        )
        house = Wheelhouse(folder, wheels_found, notes)
        finish(new, house)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return house


def _download(
    scratch: Path, requirements: Requirements, wheels: Path | None, stack: HostStack
) -> tuple[DownloadOutcome, list[Requirement]]:
    """Download wheels to scratch/new, and build wheels of packages that have none.

    Returns:
        pip's outcome, and the packages that have no wheel and must not be built.
    """
    if not (wheels or requirements.wheels_only):
        _refuse_old_pip()
    stubs, new, built = (scratch / name for name in ("stack", "new", "built"))
    for made in (stubs, new, built):
        made.mkdir()
    pins = [_write_stub(stubs, name, stack) for name in sorted(stack.packages)]
    sources = [f"--find-links {stubs}", f"--find-links {built}"]
    if wheels:
        sources += ["--no-index", f"--find-links {shlex.quote(str(wheels.absolute()))}"]
    asked = [*sources, *requirements.options, *requirements.for_pip(stack.packages, False)]
    limits = [*pins, *requirements.for_pip(stack.packages, True)]
    for name, lines in (("asked", asked), ("limits", limits)):
        (scratch / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    tried: set[str] = set()
    while True:
        pip = Pip(stack.target, Sources(), new)
        outcome = pip.download_file(scratch / "asked", scratch / "limits")
        for stub in stubs.iterdir():
            (new / stub.name).unlink(missing_ok=True)
        without_wheel = _only_sources(outcome, new, requirements, stack)
        untried = [package for package in without_wheel if str(package) not in tried]
        if wheels or requirements.wheels_only or not untried:
            if outcome.problem:
                raise DownloadError(outcome.problem)
            return outcome, untried
        for package in untried:
            tried.add(str(package))
            _build(package, requirements, scratch, stack)
        for path in new.iterdir():  # pip must choose again, with the built wheels
            path.unlink()


def _refuse_old_pip() -> None:
    """Raise an error if pip is too old to report packages without wheels.

    An older pip silently chooses an older version of a package whose dependency has no wheel.
    """
    version = pip_version()
    if version < OLDEST_PIP:
        raise FtclusterError(
            f"run --requirements needs pip {OLDEST_PIP} or newer, but this is {version}: older "
            "versions do not report packages that exist only as sources, and silently choose "
            "older releases",
            f"to upgrade pip: {shlex.join(pip_command())} install --upgrade 'pip>={OLDEST_PIP}'; "
            "to use only packages that exist as wheels, write --only-binary :all: into the file",
        )


def _only_sources(
    outcome: DownloadOutcome, folder: Path, requirements: Requirements, stack: HostStack
) -> list[Requirement]:
    """Return packages without wheels that pip would choose if it were allowed to build them.

    Without these packages, pip fails, or chooses older versions of packages that depend on them. If
    all releases of a package exist only as sources, pip may also choose a pre-release wheel.
    """
    lacking = [
        package
        for package in outcome.lacking
        if canonicalize_name(package.name) not in stack.packages
    ]
    asked = _prereleases_asked_for(folder, requirements, stack)
    return lacking + [
        Requirement(name)
        for name, version in _chosen(folder)
        if version.is_prerelease and name not in asked and _has_release(outcome.sources, name)
    ]


def _chosen(folder: Path) -> list[tuple[NormalizedName, Version]]:
    """Return the names and versions of a folder's wheels, sorted by name."""
    return sorted(parse_wheel_filename(path.name)[:2] for path in folder.glob("*.whl"))


def _has_release(versions: Mapping[str, Collection[Version]], name: str) -> bool:
    """Return True if a package has a version that is not a pre-release."""
    return any(not version.is_prerelease for version in versions.get(name, ()))


def _prereleases_asked_for(
    folder: Path, requirements: Requirements, stack: HostStack
) -> set[NormalizedName]:
    """Return the packages whose pre-releases the requirements or the folder's wheels request.

    As in pip, a range such as ">=2.0b1" or a pin such as "==0.66b2" requests a pre-release.
    """
    return {
        canonicalize_name(needed.name)
        for needed in requirements_in(folder, stack.target.python)
        if needed.specifier.prereleases
    } | {name for name, _ in _chosen(folder) if requirements.allows_prerelease(name)}


def _build(
    package: Requirement, requirements: Requirements, scratch: Path, stack: HostStack
) -> None:
    """Build a wheel of a package, and store it in the folder for built wheels."""
    name, python = str(canonicalize_name(package.name)), stack.target.python
    hashes = requirements.hashes(python)
    if hashes and name not in hashes:
        raise DownloadError(f"{package} has no --hash; if one requirement has a hash, all need one")
    asked = requirements.limited(package, python)
    build_wheel(asked, hashes.get(name, ()), requirements.options, scratch, stack.target)


def _notes(made_here: Collection[str], not_built: Collection[Requirement]) -> tuple[str, ...]:
    """Return notes about wheels that were built, and about packages that must not be built."""
    built = sorted(parse_wheel_filename(name)[:2] for name in made_here)
    return (
        *(f"{name} {version} was built here from its sources" for name, version in built),
        *(
            f"{package} exists only as sources; pip chose older versions of packages that need it"
            for package in not_built
        ),
    )


def _version_notes(
    folder: Path, requirements: Requirements, stack: HostStack, outcome: DownloadOutcome
) -> Iterator[str]:
    """Yield a note for each chosen pre-release, and for each version that is not the newest."""
    python = stack.target.python
    ranges: dict[NormalizedName, SpecifierSet] = {}
    for needed in (*requirements_in(folder, python), *requirements.asked(python)):
        name = canonicalize_name(needed.name)
        ranges[name] = ranges.get(name, SpecifierSet()) & needed.specifier
    asked = _prereleases_asked_for(folder, requirements, stack)
    for name, version in _chosen(folder):
        if version.is_prerelease and name not in asked:
            yield f"{name} {version} is a pre-release, like all versions that pip found"
        specifiers = ranges.get(name, SpecifierSet())
        for offered, why in (
            (outcome.wheels, "NEWEST conflicts with other packages"),
            (outcome.sources, f"it exists only as sources; to build it, require {name}==NEWEST"),
        ):
            newer = [
                other
                for other in offered.get(name, ())
                if other > version and specifiers.contains(other, version.is_prerelease)
            ]
            if newer:
                newest = str(max(newer))
                yield f"{name} {version} is not the newest matching version, {newest}: " + (
                    why.replace("NEWEST", newest)
                )
                break


def _write_stub(folder: Path, name: str, stack: HostStack) -> str:
    """Write a stub: an empty wheel that represents a package of the stack. Return a pin for it.

    The stub has the package's extras, but no other requirements, because the stack is complete. Its
    version exists in no package index.
    """
    version = stack.packages[name]
    version += f"{'.' if '+' in version else '+'}{PINNED}"
    requires = stack.extras.get(name, ())
    extras = sorted({extra for line in requires for extra in _EXTRA.findall(line)})
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {line}" for line in requires]
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    return f"{name}=={version}"


def _lock(
    folder: Path, made_here: Collection[str], requirements: Requirements, stack: HostStack,
    outcome: DownloadOutcome,
) -> str:  # fmt: skip
    """Return the content of LOCK: a list of the downloaded wheels and the wheels built here.

    Raises:
        WheelhouseError: a wheel has a hash that the requirements do not allow, is an unrequested
            pre-release although there are releases, or is made for CUDA; lists all such wheels.
    """
    asked = _prereleases_asked_for(folder, requirements, stack)
    lines, problems = [], []
    hashes = requirements.hashes(stack.target.python)
    for path in sorted(folder.iterdir()):
        name, version, *_ = parse_wheel_filename(path.name)
        digest = sha256_of(path)
        if hashes and name not in hashes:
            problems.append(
                f"{name}=={version} has no --hash; if one requirement has a hash, all need one"
            )
        elif hashes and digest not in hashes[name] and path.name not in made_here:
            problems.append(f"{path.name} has the sha256 {digest}, which the file does not allow")
        if version.is_prerelease and name not in asked and _has_release(outcome.sources, name):
            problems.append(
                f"{name}=={version} is a pre-release, and its releases exist only as sources; to "
                f"use the pre-release, require {name}=={version}"
            )
        cpu = stack.packages.get("torch", "").endswith("+cpu")
        if cpu and name in BESIDE_TORCH and version.local != "cpu":
            problems.append(
                f"{name}=={version} is made for torch with CUDA, but the stack's torch is for "
                f"CPUs; require {name}=={version.public}+cpu, with the line --extra-index-url "
                f"{CPU_INDEX}"
            )
        lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    if problems:
        raise WheelhouseError("\n".join(problems))
    return "".join(lines)


def _layer(house: Wheelhouse, stack: HostStack) -> Layer:
    lock = (house.folder / LOCK).read_text(encoding="utf-8")
    versions = (parse_wheel_filename(name)[:2] for name in house.wheels)
    return Layer(
        f"{stack.name}-{Wanted(LOCK, lock).digest}",
        stack.name,
        house.folder,
        {str(name): str(version) for name, version in versions},
        sum(wheel.size for wheel in house.wheels.values()),
        house.notices,
    )


def _failure(file: Path, output: str, python: str) -> FtclusterError:
    """Return the error for pip's output, with the user's file names and advice."""
    _, conflict, lines = output.partition(CONFLICT)
    hint = "require versions that are compatible with the stack"
    if not conflict:
        lines = output
        hint = (
            f"build all wheels with Python {python} on a machine that reaches a package index and "
            f"has the build tools: pip wheel -r {file.name} -w DIR; then use --wheels DIR here"
        )
    lines = re.sub(
        rf"The user requested \(constraint\) (\S+)[+.]{PINNED}", r"the stack has \1", lines
    )
    lines = redacted(re.sub(rf"[+.]{PINNED}\b", "", lines)).strip()
    what = "contradict each other" if conflict else "cannot be downloaded"
    listed = "".join(f"\n  {line.strip()}" for line in lines.splitlines())
    return FtclusterError(f"the packages of {file} {what}:{listed}", hint)
