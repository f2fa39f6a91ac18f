"""Build wheels of a script's packages that package indexes only have as sources."""

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

LAST_LINES = 5  # lines of a failed build's output to show
OUTPUT_END = "[end of output]"  # marker in pip's messages
# the timestamp of files in a wheel, so that equal sources give equal wheels: 1980, zip's first
BUILD_TIME = {"SOURCE_DATE_EPOCH": "315532800"}


def build_wheel(
    requirement: Requirement, hashes: Collection[str], options: Sequence[str], folder: Path,
    target: Target,
) -> None:  # fmt: skip
    """Build the wheel of a package into a folder, which has a folder "built" for wheels.

    pip makes an environment with the build requirements, and removes it afterwards. The code of the
    package runs as this user, as when pip installs a package from sources.

    Args:
        hashes: SHA-256 of the accepted sources; if empty, any sources.
        options: lines for pip about indexes.

    Raises:
        DownloadError: the sources cannot be built, or the wheel is not for the target.
    """
    before = set((folder / "built").iterdir())
    line = " ".join([str(requirement), *(f"--hash=sha256:{digest}" for digest in sorted(hashes))])
    # a file, because it may contain credentials
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
        said = done.stderr.partition(OUTPUT_END)[0].splitlines()
        lines = [text for text in map(str.strip, said) if text and "WARNING" not in text]
        raise DownloadError(
            redacted("\n".join([f"building {requirement} from its sources:", *lines[-LAST_LINES:]]))
        )
    for path in built:
        if problem := unsuited(path.name, target):
            raise DownloadError(f"{path.name}, built from its sources, {problem}")


def unsuited(name: str, target: Target) -> str:
    """Return why a wheel that was built here may not run on hosts; "" if it does."""
    own = platform.libc_ver()[1] or "0"
    wanted = f"cp{target.python.replace('.', '')}"
    for tag in parse_wheel_filename(name)[3]:
        if tag.platform == "any" and tag.abi == "none":
            return ""
        if tag.interpreter != wanted and tag.abi != "abi3":
            return f"is for another Python than the hosts' {target.python}"
        if Version(own) > Version(target.glibc):
            return f"has code for glibc {own}, and hosts have {target.glibc}"
    return ""
