"""Build wheels of a script's required packages that indexes offer only as sources."""

import platform
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from ansible_collections.ftcluster.cluster.plugins.module_utils.fetch_errors import redacted
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    DownloadError,
    Target,
    pip_command,
    pip_environment,
)
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

LAST_LINES = 5  # number of lines to show of a failed build's output
OUTPUT_END = "[end of output]"  # marker in pip's messages
# a fixed timestamp for files in wheels, so that equal sources give equal wheels: 1980, the first
# year that zip supports
BUILD_TIME = {"SOURCE_DATE_EPOCH": "315532800"}


def build_wheel(
    requirement: Requirement, hashes: Collection[str], options: Sequence[str], folder: Path,
    target: Target,
) -> None:  # fmt: skip
    """Build the wheel of a package from its sources.

    pip creates an environment with the build requirements, and removes it afterwards. The package's
    build code runs as this user, just as when pip installs a package from sources.

    Args:
        requirement: the package to build.
        hashes: SHA-256 digests of the accepted sources; if empty, all sources are accepted.
        options: lines for pip's requirements file with options about indexes.
        folder: folder for files of the build; the wheel is stored in its subfolder "built".
        target: the platform of the hosts.

    Raises:
        DownloadError: the sources cannot be built, or the wheel does not fit the target.
    """
    before = set((folder / "built").iterdir())
    line = " ".join([str(requirement), *(f"--hash=sha256:{digest}" for digest in sorted(hashes))])
    # the options are in a file rather than on the command line, because they may contain
    # credentials
    (folder / "build").write_text("\n".join([*options, line]) + "\n", encoding="utf-8")
    done = subprocess.run(
        [
            *pip_command(), "wheel", "--quiet", "--no-input", "--disable-pip-version-check",
            "--no-deps", "--use-pep517", f"--no-binary={requirement.name}",
            "--wheel-dir", str(folder / "built"), f"--requirement={folder / 'build'}",
        ],
        env={**pip_environment(), **BUILD_TIME}, stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip
    built = sorted(set((folder / "built").iterdir()) - before)
    if done.returncode or not built:
        output = done.stderr.partition(OUTPUT_END)[0].splitlines()
        lines = [text for text in map(str.strip, output) if text and "WARNING" not in text]
        raise DownloadError(
            redacted(
                "\n".join([f"building {requirement} from sources failed:", *lines[-LAST_LINES:]])
            )
        )
    for path in built:
        if problem := unsuited(path.name, target):
            raise DownloadError(f"{path.name}, built from its sources, {problem}")


def unsuited(name: str, target: Target) -> str:
    """Return the reason why a wheel built here may not run on the hosts; "" if it runs there."""
    local_glibc = platform.libc_ver()[1] or "0"
    wanted = f"cp{target.python.replace('.', '')}"
    for tag in parse_wheel_filename(name)[3]:
        if tag.platform == "any" and tag.abi == "none":
            return ""
        if tag.interpreter != wanted and tag.abi != "abi3":
            return f"is not for the hosts' Python {target.python}"
        if Version(local_glibc) > Version(target.glibc):
            return f"contains code for glibc {local_glibc}, but hosts have glibc {target.glibc}"
    return ""
