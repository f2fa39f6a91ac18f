"""Creates the environment of tests/engine: the default stack as the roles install it, and pytest.

.venv/bin/python scripts/engine_environment.py FOLDER PYTHON

The roles' code downloads the wheels from setup's sources into the cache of the setup tests, so that
the tests share the downloads. Packages that only some tests import are in separate folders:
FOLDER/trackers has the packages of stack native-trackers that native lacks, FOLDER/compared those
of requirements/engine.txt.
"""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import libc
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import Sources, Target
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import read_lock
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.stacks import (
    lists_of,
    read_stacks,
)
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.wheelhouse import (
    Wanted,
    Wheelhouse,
    WheelhouseError,
    get_wheels,
    verify,
)

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".test_cache/ftcluster/wheels"
LOCKS = ROOT / "roles/torch_stack/files"
# pytest, its plugins, and their requirements that the stack lacks
TESTS = {
    *("pytest", "iniconfig", "pluggy"),
    *("pytest-xdist", "execnet"),
    *("hypothesis", "sortedcontainers"),
}
UV = ROOT / ".venv-dev/bin/uv"


def chosen(lock: Path, names: set[str], python: str) -> str:
    """Return a lock's lines for the packages in `names`."""
    lines = []
    for name, pin in read_lock(lock.read_text(), python).items():
        if name in names:
            hashes = (f"--hash=sha256:{one}" for one in sorted(pin.hashes))
            lines.append(f"{name}=={pin.version} {' '.join(hashes)}\n")
    return "".join(lines)


def packages(lock: Path, python: str) -> set[str]:
    """Return the names of the packages in a lock."""
    return {*read_lock(lock.read_text(), python)}


def wheels(wanted: Wanted, target: Target) -> Wheelhouse:
    """Return the wheels of a list; download wheels that the cache lacks."""
    sources = Sources(indexes=read_stacks(LOCKS)["indexes"])
    house = get_wheels(wanted, target, sources, CACHE)
    verify(house, wanted, target.python, made_here=True)
    for notice in house.notices:
        print(f"note: {notice}", file=sys.stderr)
    return house


def install(house: Wheelhouse, python: Path, *options: str) -> None:
    """Install all wheels of a list."""
    command: list[str | Path] = [
        UV,
        "pip",
        "install",
        "--quiet",
        "--no-config",
        "--offline",
        "--no-deps",
        *options,
    ]
    subprocess.run([*command, "--python", python, *house.files], check=True)


def main() -> None:
    """Create the environment."""
    folder, interpreter = Path(sys.argv[1]), sys.argv[2]
    program = "import platform; print(platform.python_version())"
    asked = subprocess.run(
        [interpreter, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    version = ".".join(asked.stdout.split(".")[:2])
    target = Target(version, libc().partition("glibc ")[2], platform.machine())
    native, more = LOCKS / "native.txt", LOCKS / "native-trackers.txt"
    trackers = packages(more, version) - packages(native, version)
    apart = {
        "trackers": chosen(more, trackers, version),
        "compared": (ROOT / "requirements/engine.txt").read_text(),
    }
    tests = chosen(ROOT / "requirements/dev.txt", TESTS, version)
    stack = wheels(lists_of(LOCKS, read_stacks(LOCKS), "native", CACHE).wanted, target)
    shutil.rmtree(folder, ignore_errors=True)
    new: list[str | Path] = [
        UV, "venv", "--quiet", "--no-config", "--python", interpreter, folder
    ]  # fmt: skip
    subprocess.run(new, check=True)
    python = folder / "bin/python"
    install(stack, python)
    install(wheels(Wanted("engine-tests", tests), target), python)
    for name, lock in apart.items():
        house = wheels(Wanted(f"engine-{name}", lock), target)
        install(house, python, "--target", str(folder / name))


if __name__ == "__main__":
    try:
        main()
    except (WheelhouseError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
