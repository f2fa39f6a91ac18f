"""The collection as ansible-galaxy builds and installs it, without the rest of the repository."""

import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from ftcluster_common import NEXT_RELEASE
from tests.programs import CONTROL, ROOT


@dataclass(frozen=True)
class Installed:
    """The installed collection in a separate folder.

    Attributes:
        clone: the clone that it was built from.
        collections: the folder that it was installed into.
        names: the files of its tarball.
    """

    clone: Path
    collections: Path
    names: list[str]

    @property
    def env(self) -> dict[str, str]:
        return environment(self.collections)

    def run(self, *arguments: str) -> str:
        return run(self.collections, *arguments)


def environment(collections: Path) -> dict[str, str]:
    """Make programs of Ansible find collections only in this folder."""
    return {
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        # otherwise Ansible would find the collection that pip installed
        "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false",
    }


def run(collections: Path, *arguments: str) -> str:
    """Return the stdout of an Ansible program that finds collections only in this folder."""
    done = subprocess.run(
        [str(CONTROL / arguments[0]), *arguments[1:]],
        env=os.environ | environment(collections),
        cwd=collections,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def export(folder: Path) -> None:
    """Copy the files of a clone: tracked files, and new files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # git may still list a removed file
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def install(folder: Path) -> Installed:
    """Build the collection from a clone and install it, both below an empty folder."""
    clone, collections = folder / "clone", folder / "collections"
    for made in (clone, collections):
        made.mkdir()
    export(clone)
    (clone / ".git").mkdir()
    (clone / ".git/config").touch()
    galaxy = ("ansible-galaxy", "collection")
    run(collections, *galaxy, "build", str(clone), "--output-path", str(folder))
    tarball = next(folder.glob("*.tar.gz"))
    assert tarball.name == f"ftcluster-cluster-{NEXT_RELEASE}.tar.gz"
    run(collections, *galaxy, "install", "--offline", "-p", str(collections), str(tarball))
    with tarfile.open(tarball) as tar:
        return Installed(clone, collections, tar.getnames())
