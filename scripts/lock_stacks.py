"""Writes the locks of stacks: roles/torch_stack/files/<name>.txt and, beside it, <name>-cuda.txt.

scripts/lock-stacks            locks all stacks that are not only documented
scripts/lock-stacks intel-2.8  locks the named stacks; openvino and onnx name the packages that
                               `ftcluster export-model` installs

A lock lists every package of a stack with its exact version and the hashes of the wheels that fit
(Linux, x86_64, the stack's versions of Python). uv resolves the versions with the package index in
pip's configuration. Some packages come from another index (`indexes` in stacks.yml) with other
files, whose hashes are in the section `hashes`. Packages in a stack's `unverified` have no hashes.
<name>-cuda.txt lists the packages that only torch's CUDA build needs.
"""

import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from packaging.markers import Marker
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

FILES = Path(__file__).parents[1] / "roles/torch_stack/files"
# uv installs the wheels; pip is only for users
TOOLS = {"uv": "0.13.9", "pip": "", "setuptools": "", "safetensors": ""}
OWN_PYTHON = f"3.{sys.version_info.minor}"
EXPORTERS = Path(__file__).parents[1] / "runner/ftcluster/export/exporters"
# packages in addition to the default stack's torch; optimum-intel needs an older transformers
EXPORTER = {
    "openvino": {"optimum-intel[openvino]": "2.2.0"},
    "onnx": {"onnx": "", "onnxruntime": "", "onnxscript": "", "transformers": "the stack's"},
}
NOT_NEEDED = "torchvision"  # optimum-intel requires it for images; no build fits a torch for CPUs
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")
HEADER = """\
# {what}. Renew it with scripts/lock-stacks {name}
# download {download} bytes, unpacked {unpacked} bytes (for Python {python})
"""


def minors(first: str, last: str) -> list[str]:
    """Return every minor version from the first to the last, both included."""
    begin, end = (int(text.partition(".")[2]) for text in (first, last))
    return [f"3.{number}" for number in range(begin, end + 1)]


def applies(marker: str | None, python: str) -> bool:
    """Return True if a requirement with this marker applies on Linux with this Python."""
    environment = {  # the rest comes from this machine, which also runs Linux
        "python_version": python,
        "python_full_version": f"{python}.99",
        "platform_machine": "x86_64",
    }
    return marker is None or Marker(marker).evaluate(environment)


def fits(filename: str, pythons: list[str]) -> bool:
    """Return True if a wheel installs on Linux, x86_64, with one of the Pythons."""
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return False
    own = {f"cp{python.replace('.', '')}" for python in pythons}
    return any(
        (tag.platform == "any" or tag.platform.endswith("linux_x86_64") or _manylinux(tag.platform))
        and (tag.interpreter in own or tag.abi in ("abi3", "none"))
        and not tag.abi.endswith("t")
        for tag in tags
    )


def _manylinux(platform: str) -> bool:
    return platform.startswith("manylinux") and platform.endswith("x86_64")


def lock_lines(
    packages: list[dict[str, Any]], pythons: list[str], elsewhere: Mapping[str, str]
) -> list[str]:
    """Return the lines of a lock.

    Args:
        packages: packages in the form of a pylock.toml (PEP 751).
        pythons: the minor versions that the lock is for.
        elsewhere: the SHA-256 of wheels that other indexes have, by file name.

    Raises:
        SystemExit: a package has no wheel that fits, or another index has no wheel for one Python.
    """
    lines = []
    for package in packages:
        name, marker = package["name"], package.get("marker")
        where = [python for python in pythons if applies(marker, python)]
        if not where:
            continue
        line = f"{name}=={package['version']}"
        if where != pythons:
            line += f" ; {_marker(where, pythons)}"
        hashes = {
            wheel["hashes"]["sha256"]
            for wheel in package.get("wheels", [])
            if fits(wheel["url"].rpartition("/")[2].replace("%2B", "+"), where)
        }
        if not hashes:
            raise SystemExit(f"error: {name} {package['version']} has no wheel for {where}")
        hashes |= hashes_elsewhere(name, package["version"], where, elsewhere)
        lines.append(" \\\n    ".join([line, *(f"--hash=sha256:{h}" for h in sorted(hashes))]))
    return lines


def hashes_elsewhere(
    name: str, version: str, pythons: list[str], elsewhere: Mapping[str, str]
) -> set[str]:
    """Return the SHA-256 of a package's wheels on other indexes, with or without a local version.

    Raises:
        SystemExit: other indexes have the package, but not this version for each Python.
    """
    files = {f: parse_wheel_filename(f) for f in elsewhere}
    versions = {f: str(v.public) for f, (n, v, *_) in files.items() if n == canonicalize_name(name)}
    found = set()
    for python in pythons if versions else ():
        good = {
            elsewhere[f]
            for f, public in versions.items()
            if public == version and fits(f, [python])
        }
        if not good:
            raise SystemExit(
                f"error: stacks.yml has no hash of {name} {version} for Python {python} from its "
                "own index; add it to the section hashes"
            )
        found |= good
    return found


def _marker(where: list[str], pythons: list[str]) -> str:
    """Return a range of Pythons as a marker; uv's ranges have no gaps."""
    parts = []
    if where[0] != pythons[0]:
        parts.append(f'python_version >= "{where[0]}"')
    if where[-1] != pythons[-1]:
        parts.append(f'python_version <= "{where[-1]}"')
    return " and ".join(parts)


def resolve(requirements: list[str], python: str) -> list[dict[str, Any]]:
    """Return every package that the requirements need, for this Python and newer versions."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "stack.in", Path(scratch) / "pylock.toml"
        source.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        command: list[str | Path] = [
            Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--universal",
            "--python-version", python, "--format", "pylock.toml", "--output-file", target, source,
        ]  # fmt: skip
        subprocess.run(command, check=True)
        packages: list[dict[str, Any]] = tomllib.loads(target.read_text())["packages"]
        return packages


def write_lock(name: str, stack: dict[str, Any], elsewhere: dict[str, str]) -> None:
    """Resolve one stack and write its files."""
    pythons = minors(*stack["python"])
    # uv knows only the package index
    unseen = {p: v for p, v in stack["packages"].items() if p in stack.get("unverified", ())}
    wanted = {p: v for p, v in {**TOOLS, **stack["packages"]}.items() if p not in unseen}
    packages = resolve(
        [f"{p}=={v}" if v else p for p, v in wanted.items()]
        + [f"{p}=={v}" for p, v in stack.get("also", {}).items()],
        # this range also includes Pythons without wheels, which does no harm
        pythons[0],
    )
    main = [p for p in packages if not p["name"].startswith(CUDA_PREFIXES)]
    cuda = [p for p in packages if p["name"].startswith(CUDA_PREFIXES)]
    lines = lock_lines(main, pythons, elsewhere) + [f"{p}=={v}" for p, v in unseen.items()]
    texts = {
        "": (f"The complete list of the packages of stack {name}", main, sorted(lines)),
        "-cuda": ("What only torch's CUDA build needs", cuda, lock_lines(cuda, pythons, elsewhere)),
    }
    for suffix, (what, listed, text) in texts.items():
        write_file(FILES / f"{name}{suffix}.txt", name, what, listed, text)


def write_file(
    path: Path, name: str, what: str, packages: list[dict[str, Any]], lines: list[str]
) -> None:
    """Write a lock, with the sizes of its packages."""
    download, unpacked = measure(packages)
    head = HEADER.format(
        what=what, name=name, download=download, unpacked=unpacked, python=OWN_PYTHON
    )
    path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(lines)} packages, {download / 1e9:.2f} GB")


def write_exporter(name: str, stack: dict[str, Any], elsewhere: dict[str, str]) -> None:
    """Resolve the packages that `ftcluster export-model` installs for a format.

    The packages that torch's CUDA build needs are in the stack's lock.

    Args:
        stack: the default stack.
    """
    pythons, own = minors(*stack["python"]), stack["packages"]
    wanted = {"torch": "", **EXPORTER[name]}
    versions = {p: own.get(p, v) for p, v in wanted.items()}
    packages = [
        package
        for package in resolve([f"{p}=={v}" if v else p for p, v in versions.items()], pythons[0])
        if package["name"] != NOT_NEEDED and not package["name"].startswith(CUDA_PREFIXES)
    ]
    what = f"What ftcluster export-model {name} installs"
    lines = sorted(lock_lines(packages, pythons, elsewhere))
    write_file(EXPORTERS / f"{name}.txt", name, what, packages, lines)


def measure(packages: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the bytes to download, and the unpacked bytes, of the packages for this Python."""
    pins = [
        f"{p['name']}=={p['version']}" for p in packages if applies(p.get("marker"), OWN_PYTHON)
    ]
    with tempfile.TemporaryDirectory(dir=Path.home()) as scratch:
        command = [
            sys.executable, "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--only-binary=:all:", "--dest", scratch, *pins,
        ]  # fmt: skip
        subprocess.run(command, check=True)
        wheels = list(Path(scratch).iterdir())
        unpacked = 0
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                unpacked += sum(entry.file_size for entry in archive.infolist())
        return sum(wheel.stat().st_size for wheel in wheels), unpacked


def main() -> None:
    """Write the locks that the command line names, or all locks."""
    data = yaml.safe_load((FILES / "stacks.yml").read_text(encoding="utf-8"))
    locked = {n: s for n, s in data["stacks"].items() if s["state"] != "documented"}
    unknown = set(sys.argv[1:]) - {*locked, *EXPORTER}
    if unknown:
        sys.exit(f"error: {', '.join(unknown)}: known: {', '.join((*locked, *EXPORTER))}")
    [default] = (stack for stack in locked.values() if stack["state"] == "default")
    for name in sys.argv[1:] or (*locked, *EXPORTER):
        if name in EXPORTER:
            write_exporter(name, default, data["hashes"])
        else:
            write_lock(name, locked[name], data["hashes"])


if __name__ == "__main__":
    main()
