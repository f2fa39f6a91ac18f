"""The version of a build, from real repositories."""

import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from ftcluster_common import RELEASE
from hatch_version import hosts_version, version
from tests.programs import ROOT


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit."""
    for name in ("hatch_version.py", "common/ftcluster_common/__init__.py", ".gitattributes",
                 ".git_archival.txt"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def commit(root: Path, file: str) -> str:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.read_text() + "#" if path.exists() else "#")
    git(root, "add", "-A")
    git(root, "commit", "-qm", file)
    return git(root, "rev-parse", "HEAD")[:8]


def test_a_version_counts_commits_and_names_the_last(root: Path) -> None:
    first = git(root, "rev-parse", "HEAD")[:8]
    assert version(root) == f"{RELEASE}.dev1+g{first}"
    second = commit(root, "runner/a.py")
    versions = [version(root)]
    assert versions[0] == f"{RELEASE}.dev2+g{second}"
    assert hosts_version(root) == f"{RELEASE}.dev1+g{first}"  # its files are the same
    (root / "runner/a.py").write_text("changed")
    assert version(root) == f"{versions[0]}.dirty"
    assert hosts_version(root) == f"{RELEASE}.dev1+g{first}"
    git(root, "checkout", "-q", "runner/a.py")
    git(root, "tag", f"v{RELEASE}")
    assert version(root) == hosts_version(root) == RELEASE
    versions += [RELEASE]
    later = commit(root, "train/b.py")
    assert version(root) == hosts_version(root) == f"{RELEASE}.post1+g{later}"
    versions += [version(root)]
    assert versions == sorted(versions, key=Version)


def test_commits_after_a_tag_lead_to_the_release_that_the_sources_name(root: Path) -> None:
    git(root, "tag", f"v{RELEASE}")
    path = root / "common/ftcluster_common/__init__.py"
    path.write_text(path.read_text().replace(f'RELEASE = "{RELEASE}"', 'RELEASE = "9.0.0"'))
    last = commit(root, "train/b.py")
    assert version(root) == f"9.0.0.dev1+g{last}"


def test_an_archive_without_a_history_names_its_commit(root: Path, tmp_path: Path) -> None:
    last = git(root, "rev-parse", "HEAD")[:8]

    def archived(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        made = subprocess.run(
            ["git", "-C", str(root), "archive", "HEAD"], capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", str(folder)], input=made.stdout, check=True)
        return folder

    # below a repository that is not its own
    archive = archived("archive")
    assert version(archive) == f"{RELEASE}.dev0+g{last}"
    (archive / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: ftcluster\nVersion: 5.1.dev2\n")
    assert version(archive) == hosts_version(archive) == "5.1.dev2"
    git(root, "tag", "v0.3.0")
    assert version(archived("release")) == "0.3.0"
    (archive / "PKG-INFO").unlink()
    (archive / ".git_archival.txt").unlink()
    assert version(archive) == f"{RELEASE}.dev0"


def test_a_shallow_clone_does_not_count(root: Path, tmp_path: Path) -> None:
    last = commit(root, "train/b.py")
    clone = tmp_path / "clone"
    git(root, "clone", "-q", "--depth", "1", f"file://{root}", str(clone))
    assert version(clone) == hosts_version(clone) == f"{RELEASE}.dev0+g{last}"


def test_without_git_a_version_is_that_of_the_sources(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/none")
    assert version(root) == f"{RELEASE}.dev0"
