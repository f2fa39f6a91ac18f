"""The version of a build: the tag of a release, or the next release and the commits since the tag.

    0.1.0                        the commit with the tag v0.1.0
    0.2.0.dev3+g1a2b3c4d         three commits after that tag
    0.2.0.dev3+g1a2b3c4d.dirty   with files that are not committed

The next release is the next minor version after the newest tag, or NEXT_RELEASE in ftcluster_common
if that is higher. Without a tag all commits count. Archives of the sources have no history, but a
PKG-INFO (source distributions) or a .git_archival.txt (`git archive`).

`python3 hatch_version.py` prints the version. With the arguments `stamp FILE` it writes the version
into a galaxy.yml.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
HOSTS_PACKAGE = ("common", "train")  # folders that the wheel of the hosts' package is made of
DIGITS = 8  # of a commit's hash
# git's patterns are those of file names: tags such as v1.2.3, but not v1.2.3rc1
TAGS = ("--tags", "--match", "v[0-9]*.[0-9]*.[0-9]*", "--exclude", "v*[!0-9.]*")
VERSION = re.compile(r"(\d+\.\d+\.\d+)(?:\.dev(\d+))?(?:\+(.+))?")


def next_release(newest: str = "", root: Path = ROOT) -> str:
    """Return the release that the sources lead to.

    Args:
        newest: tag of the newest release, or "".

    Raises:
        ValueError: ftcluster_common has no NEXT_RELEASE.
    """
    text = (root / "common/ftcluster_common/__init__.py").read_text(encoding="utf-8")
    declared = re.search(r'^NEXT_RELEASE = "([0-9.]+)"', text, re.MULTILINE)
    if not declared:
        raise ValueError("common/ftcluster_common/__init__.py has no NEXT_RELEASE")
    if not newest:
        return declared[1]
    major, minor, _ = newest.removeprefix("v").split(".")
    return max(declared[1], f"{major}.{int(minor) + 1}.0", key=_numbers)


def version(root: Path = ROOT, folders: Sequence[str] = ()) -> str:
    """Return the version of a build of the sources in a folder.

    Args:
        folders: folders that the build is made of; empty for all. If they are unchanged since a
            release, the version is that release. Otherwise it is the version of the last commit
            that changed one of them. So hosts keep a package that is still the same.
    """
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return _of_archive(root)
    names = ["--", *folders] if folders else []
    is_changed = bool(_git(root, "status", "--porcelain", "--untracked-files=no", *names))
    newest = _git(root, "describe", *TAGS, "--abbrev=0")
    since = _git(root, "rev-list", "--count", f"{newest}..HEAD", *names) if newest else ""
    if since == "0" and not is_changed:
        return newest[1:]
    commit = _git(root, "log", "-1", "--format=%H", *names)
    release, dirty = next_release(newest, root), ".dirty" if is_changed else ""
    if not commit:
        return f"{release}.dev0"
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":  # its history is incomplete
        count = "0"
    else:
        count = _git(root, "rev-list", "--count", f"{newest}..{commit}" if newest else commit)
    return f"{release}.dev{count}+g{commit[:DIGITS]}{dirty}"


def hosts_version(root: Path = ROOT) -> str:
    """Return the version of the hosts' package."""
    return version(root, HOSTS_PACKAGE)


def semantic(version: str) -> str:
    """Return a version in the form that collections need (semver.org).

    Raises:
        ValueError: it is no version of this module.

    >>> semantic("0.1.0"), semantic("0.2.0.dev3+g1a2b3c4d.dirty")
    ('0.1.0', '0.2.0-dev.3+g1a2b3c4d.dirty')
    """
    parts = VERSION.fullmatch(version)
    if not parts:
        raise ValueError(f"{version!r} is not a version such as 0.1.0 or 0.1.0.dev3+g1a2b3c4d")
    release, commits, commit = parts.groups()
    pre, build = f"-dev.{commits}" if commits else "", f"+{commit}" if commit else ""
    return f"{release}{pre}{build}"


def stamped(galaxy: str, version: str) -> str:
    """Return the text of a galaxy.yml with a version.

    Raises:
        ValueError: the text has no line with a version.
    """
    text, lines = re.subn(
        r"^version: .*$", f"version: {semantic(version)}", galaxy, flags=re.MULTILINE
    )
    if lines != 1:
        raise ValueError("galaxy.yml must have a single line `version:`")
    return text


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


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
    package = root / "PKG-INFO"
    text = package.read_text("utf-8") if package.is_file() else ""
    if packaged := re.search(r"^Version: (\S+)$", text, re.MULTILINE):
        return packaged[1]
    archival = root / ".git_archival.txt"
    text = archival.read_text("utf-8") if archival.is_file() else ""
    # "v0.1.0", or "v0.1.0-3-g1a2b3c4d" after three more commits
    described = re.search(r"^tag: v(\d+\.\d+\.\d+)(?:-(\d+)-g[0-9a-f]+)?$", text, re.MULTILINE)
    tag, commits = described.groups() if described else ("", None)
    if tag and not commits:
        return str(tag)
    commit = re.search(rf"^commit: ([0-9a-f]{{{DIGITS}}})", text, re.MULTILINE)
    hash_part = f"+g{commit[1]}" if commit else ""
    return f"{next_release(tag, root)}.dev{commits or 0}{hash_part}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["stamp"]:
        path = Path(sys.argv[2])
        path.write_text(stamped(path.read_text("utf-8"), version()), encoding="utf-8")
    else:
        print(version())
