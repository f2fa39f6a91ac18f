"""The version of a build, tested in real repositories."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.utils.version import SemanticVersion
from packaging.version import Version

from ftcluster_common import NEXT_RELEASE as RELEASE
from hatch_version import hosts_version, semantic, stamped, version
from tests.programs import ROOT

MAJOR, MINOR, _ = RELEASE.split(".")
FOLLOWING = f"{MAJOR}.{int(MINOR) + 1}.0"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a repository with one commit."""
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
    # the files of the hosts' package are the same
    assert hosts_version(root) == f"{RELEASE}.dev1+g{first}"
    (root / "runner/a.py").write_text("changed")
    assert version(root) == f"{versions[0]}.dirty"
    assert hosts_version(root) == f"{RELEASE}.dev1+g{first}"
    git(root, "checkout", "-q", "runner/a.py")
    git(root, "tag", f"v{RELEASE}")
    assert version(root) == hosts_version(root) == RELEASE
    versions += [RELEASE]
    later = commit(root, "train/b.py")
    assert version(root) == hosts_version(root) == f"{FOLLOWING}.dev1+g{later}"
    versions += [version(root)]
    assert versions == sorted(versions, key=Version)


def test_hosts_keep_the_package_of_a_release_that_is_unchanged(root: Path) -> None:
    """The last change of the package's files may be older than the release."""
    commit(root, "runner/a.py")
    git(root, "tag", f"v{RELEASE}")
    later = commit(root, "runner/a.py")
    assert version(root) == f"{FOLLOWING}.dev1+g{later}"
    assert hosts_version(root) == RELEASE
    (root / "common/ftcluster_common/__init__.py").open("a").write("# changed\n")
    assert hosts_version(root).startswith(f"{FOLLOWING}.dev")
    assert hosts_version(root).endswith(".dirty")


def test_a_side_branch_from_before_a_tag_is_part_of_the_next_release(root: Path) -> None:
    git(root, "checkout", "-qb", "side")
    commit(root, "train/side.py")
    git(root, "checkout", "-q", "-")
    commit(root, "runner/a.py")
    git(root, "tag", f"v{RELEASE}")
    git(root, "merge", "-q", "--no-edit", "side")
    for made in (version(root), hosts_version(root)):
        assert Version(RELEASE) < Version(made) < Version(FOLLOWING)


@pytest.mark.parametrize("tag", ["v1.2.3rc1", "v2", "vnext", "1.2.3"])
def test_other_tags_are_no_releases(root: Path, tag: str) -> None:
    first = git(root, "rev-parse", "HEAD")[:8]
    git(root, "tag", tag)
    assert version(root) == f"{RELEASE}.dev1+g{first}"


def test_the_newest_tag_counts(root: Path) -> None:
    git(root, "tag", "v0.9.0")
    commit(root, "train/b.py")
    git(root, "tag", "v0.10.0")
    last = commit(root, "train/b.py")
    assert version(root) == hosts_version(root) == f"0.11.0.dev1+g{last}"


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

    # inside of another project's repository
    archive = archived("archive")
    assert version(archive) == f"{RELEASE}.dev0+g{last}"
    (archive / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: ftcluster\nVersion: 5.1.dev2\n")
    assert version(archive) == hosts_version(archive) == "5.1.dev2"
    git(root, "tag", "v0.3.0")
    assert version(archived("release")) == "0.3.0"
    after = commit(root, "train/b.py")
    assert version(archived("later")) == hosts_version(tmp_path / "later") == f"0.4.0.dev1+g{after}"
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


def test_galaxy_accepts_each_version_and_orders_them_alike(root: Path) -> None:
    versions = [version(root)]
    git(root, "tag", f"v{RELEASE}")
    versions += [version(root)]
    commit(root, "train/b.py")
    versions += [version(root)]
    (root / "train/b.py").write_text("changed")
    versions += [version(root)]
    for each in versions:
        galaxy = yaml.safe_load(stamped((ROOT / "galaxy.yml").read_text(), each))
        assert SemanticVersion(galaxy["version"]) == SemanticVersion(semantic(each))
        assert SemanticVersion(galaxy["version"]).is_prerelease == (each != RELEASE)
    assert versions == sorted(versions, key=lambda each: SemanticVersion(semantic(each)))


def test_all_packages_and_the_collection_have_the_version_of_the_tag(tmp_path: Path) -> None:
    """Copy this repository's files with the version, and add a tag."""
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "common", clone / "common", ignore=ignored)
    for name in ("hatch_version.py", "galaxy.yml"):
        shutil.copy(ROOT / name, clone / name)
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "one")
    git(clone, "tag", f"v{RELEASE}")

    def versions() -> tuple[str, str, str]:
        built = version(clone)
        (clone / "common/ftcluster_common/_version.py").write_text(f'__version__ = "{built}"\n')
        program = "from ftcluster_common import RELEASE, __version__; print(__version__, RELEASE)"
        shown = subprocess.run(
            [sys.executable, "-c", program], cwd=clone / "common", check=True,
            capture_output=True, text=True, env={"PATH": "", "PYTHONPATH": ""},
        ).stdout.split()  # fmt: skip
        subprocess.run(
            [sys.executable, "-I", clone / "hatch_version.py", "stamp", clone / "galaxy.yml"],
            check=True,
        )
        collection = yaml.safe_load((clone / "galaxy.yml").read_text())["version"]
        git(clone, "checkout", "-q", "galaxy.yml")
        return shown[0], shown[1], collection

    (clone / ".gitignore").write_text("_version.py\n__pycache__\n.gitignore\n")
    assert versions() == (RELEASE, RELEASE, RELEASE)
    last = commit(clone, "common/ftcluster_common/limits.py")
    assert versions() == (
        f"{FOLLOWING}.dev1+g{last}", FOLLOWING, f"{FOLLOWING}-dev.1+g{last}",
    )  # fmt: skip
