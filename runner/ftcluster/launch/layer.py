"""The packages of a script's own requirements, chosen and downloaded once for all hosts."""

import fcntl
import hashlib
import json
import re
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    CONFLICT,
    DownloadError,
    Pip,
    Sources,
    redacted,
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
from packaging.utils import parse_wheel_filename

from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch.ask import HostStack
from ftcluster.user_script.requirements import Requirements

LOCK = "requirements.txt"  # in the folder with the wheels
BESIDE_TORCH = ("torchvision", "torchaudio")  # they have code that is linked with torch
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)")
PINNED = "ftcluster"  # of the versions that pip is told for the stack's packages: 2.13.0+ftcluster


@dataclass(frozen=True)
class Layer:
    """Packages that come behind those of a stack.

    Attributes:
        name: its folder's name on the hosts; changes with the stack and with any of the files.
        stack: the name of the stack.
        folder: with the wheels, and with their list LOCK, on this machine.
        packages: versions by normalized name.
        size_bytes: size of all wheels.
    """

    name: str
    stack: str
    folder: Path
    packages: dict[str, str]
    size_bytes: int

    def has_module(self, module: str) -> bool:
        """Whether one of the packages has what a module is in."""
        top = module.partition(".")[0]
        return any(name.startswith((f"{top}/", f"{top}.")) for name in self._files())

    def _files(self) -> Iterator[str]:
        for path in self.folder.glob("*.whl"):
            with zipfile.ZipFile(path) as wheel:
                yield from wheel.namelist()

    def document(self) -> dict[str, Any]:
        """What `--json` and a run's record say of it."""
        return {"name": self.name, "packages": self.packages, "bytes": self.size_bytes}


def make_layer(
    requirements: Requirements, wheels: Path | None, stack: HostStack, cache: Path | None = None
) -> Layer | None:
    """The packages of a requirements file that a stack does not have; None for none.

    The same file gives the same packages again, from `cache`, as long as the stack is the same.

    Args:
        wheels: a folder with all of them, or None to download them.
        cache: left out, the cache of all downloads.

    Raises:
        UsageError: a package of the stack would have to be another one; names all.
        FtclusterError: pip finds no versions that match, or no source has them.
    """
    cache = cache or cache_dir()
    python = stack.target.python
    if conflicts := requirements.conflicts(stack.packages, python):
        raise UsageError(
            f"packages of the stack {stack.name} are not replaced\n  " + "\n  ".join(conflicts),
            "leave the version open, or install a stack that has it: ftcluster stacks",
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
            "it is below XDG_CACHE_HOME, or else ~/.cache, which needs space",
        ) from error


def _key(requirements: Requirements, wheels: Path | None, stack: HostStack) -> str:
    """Changes with everything that packages are chosen by, besides what an index has."""
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
    """Choose and download packages into a folder, which is renamed when it is complete."""
    shutil.rmtree(folder, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        stubs, new = scratch / "stack", scratch / "new"
        stubs.mkdir()
        new.mkdir()
        pins = [_write_stub(stubs, name, stack) for name in sorted(stack.packages)]
        sources = [f"--find-links {stubs}"]
        if wheels:
            sources += ["--no-index", f"--find-links {shlex.quote(str(wheels.absolute()))}"]
        asked = [*sources, *requirements.options, *requirements.for_pip(stack.packages, False)]
        limits = [*pins, *requirements.for_pip(stack.packages, True)]
        for name, lines in (("asked", asked), ("limits", limits)):
            (scratch / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        Pip(stack.target, Sources(), new).download_file(scratch / "asked", scratch / "limits")
        for stub in stubs.iterdir():
            (new / stub.name).unlink(missing_ok=True)
        lock = _lock(new, requirements, stack)
        wheels_found = check(new, Wanted(LOCK, lock), stack.target.python)
        (new / LOCK).write_text(lock, encoding="utf-8")
        house = Wheelhouse(folder, wheels_found)
        finish(new, house)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return house


def _write_stub(folder: Path, name: str, stack: HostStack) -> str:
    """Write a wheel that stands for a package of the stack; returns its pin.

    It has the package's extras, but no other requirements, because the stack is complete. Its
    version is one that no index has.
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


def _lock(folder: Path, requirements: Requirements, stack: HostStack) -> str:
    """The list of the downloaded wheels.

    Raises:
        WheelhouseError: a wheel is not what the file allows, is a development version that nobody
            asked for, or is made for CUDA; names all.
    """
    lines, problems = [], []
    hashes = requirements.hashes(stack.target.python)
    for path in sorted(folder.iterdir()):
        name, version, *_ = parse_wheel_filename(path.name)
        digest = sha256_of(path)
        if hashes and name not in hashes:
            problems.append(f"{name}=={version} has no --hash; with one of them, all need one")
        elif hashes and digest not in hashes[name]:
            problems.append(f"{path.name} has the sha256 {digest}, which the file does not allow")
        if version.is_prerelease and not requirements.allows_prerelease(name):
            problems.append(
                f"{name}=={version} is a development version, and no release of it is a wheel; "
                f"build one (below), or ask for this one: {name}=={version}"
            )
        cpu = stack.packages.get("torch", "").endswith("+cpu")
        if cpu and name in BESIDE_TORCH and version.local != "cpu":
            problems.append(
                f"{name}=={version} is made for torch with CUDA, and does not load beside the "
                f"stack's; ask for {name}=={version.public}+cpu, with the line --extra-index-url "
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
    )


def _failure(file: Path, words: str, python: str) -> FtclusterError:
    """What pip has said, by the names that the user knows, and what to do."""
    _, conflict, lines = words.partition(CONFLICT)
    hint = "ask for versions that go together with the stack's"
    if not conflict:
        lines = words
        hint = (
            "only wheels are taken, and nothing is built on hosts. Have pip build those that there "
            f"are not, with Python {python} and on a machine that reaches a package index: "
            f"pip wheel -r {file.name} -w DIR; then, here, --wheels DIR"
        )
    lines = re.sub(
        rf"The user requested \(constraint\) (\S+)[+.]{PINNED}", r"the stack has \1", lines
    )
    lines = redacted(re.sub(rf"[+.]{PINNED}\b", "", lines)).strip()
    what = "contradict each other" if conflict else "cannot be downloaded"
    listed = "".join(f"\n  {line.strip()}" for line in lines.splitlines())
    return FtclusterError(f"the packages of {file} {what}:{listed}", hint)
