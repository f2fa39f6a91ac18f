"""The version of a build: the release in ftcluster_common, and the commits since its tag.

    0.1.0                        the commit with the tag v0.1.0
    0.1.0.post3+g1a2b3c4d        three commits after that tag
    0.2.0.dev3+g1a2b3c4d         the same, once ftcluster_common names the next release
    0.2.0.dev3+g1a2b3c4d.dirty   with files that are not committed

Without a tag all commits count. An archive of the sources has a PKG-INFO (of a source distribution)
or .git_archival.txt (of `git archive`) instead of a history. `python3 hatch_version.py` prints it.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
HOSTS_PACKAGE = ("common", "train")  # folders that its wheel is made of
DIGITS = 8  # of a commit's hash


def release(root: Path = ROOT) -> str:
    """Return the release that the sources are of, or lead to.

    Raises:
        ValueError: the file does not name one.
    """
    text = (root / "common/ftcluster_common/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^RELEASE = "([0-9.]+)"', text, re.MULTILINE)
    if not found:
        raise ValueError("common/ftcluster_common/__init__.py names no RELEASE")
    return found[1]


def version(root: Path = ROOT, folders: Sequence[str] = ()) -> str:
    """Return the version of a build of the sources in a folder.

    Args:
        folders: the folders that the build is made of. Between releases its version is that of the
            last commit that changed one of them, so hosts keep a package that is still the same.
            None: all folders.
    """
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return _of_archive(root)
    names = ["--", *folders] if folders else []
    changed = bool(_git(root, "status", "--porcelain", "--untracked-files=no", *names))
    tag = _git(root, "describe", "--tags", "--exact-match", "--match", "v[0-9]*")
    if tag and not changed:
        return tag[1:]
    commit = _git(root, "log", "-1", "--format=%H", *names)
    if not commit:
        return f"{release(root)}.dev0"
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":  # which cannot be counted
        return f"{release(root)}.dev0+g{commit[:DIGITS]}{'.dirty' if changed else ''}"
    newest = _git(root, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", commit)
    commits = _git(root, "rev-list", "--count", f"{newest}..{commit}" if newest else commit)
    kind = "post" if newest == f"v{release(root)}" else "dev"
    dirty = ".dirty" if changed else ""
    return f"{release(root)}.{kind}{commits}+g{commit[:DIGITS]}{dirty}"


def hosts_version(root: Path = ROOT) -> str:
    """Return the version of the hosts' package."""
    return version(root, HOSTS_PACKAGE)


def _git(root: Path, *arguments: str) -> str:
    """Return what git prints in a folder; "" if it fails, or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _of_archive(root: Path) -> str:
    for name, pattern in (
        ("PKG-INFO", r"^Version: (\S+)$"),
        (".git_archival.txt", r"^tag: v([0-9.]+)$"),
    ):
        path = root / name
        if path.is_file() and (found := re.search(pattern, path.read_text("utf-8"), re.MULTILINE)):
            return found[1]
    archival = root / ".git_archival.txt"
    text = archival.read_text("utf-8") if archival.is_file() else ""
    commit = re.search(r"^commit: ([0-9a-f]{8})", text, re.MULTILINE)
    return f"{release(root)}.dev0+g{commit[1]}" if commit else f"{release(root)}.dev0"


if __name__ == "__main__":
    print(version())
