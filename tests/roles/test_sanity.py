"""ansible-test sanity on the collection: those of its tests that need nothing to be downloaded.

ansible-doc, import, pep8, pslint, pylint, runtime-metadata, shellcheck, validate-modules and
yamllint get environments of their own from sites beyond the package index.
use-argspec-type-path forbids what host_facts does with the ~ of its default folder.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT

PARTS = ("playbooks", "roles", "plugins", "meta", "galaxy.yml", "README.md", "LICENSE")
TESTS = (
    "action-plugin-docs", "compile", "empty-init", "ignores", "line-endings", "no-assert",
    "no-get-exception", "no-illegal-filenames", "no-smart-quotes", "replace-urlopen", "shebang",
    "symlinks", "use-compat-six",
)  # fmt: skip


@pytest.mark.more
def test_the_collection_is_sane(tmp_path: Path) -> None:
    collection = tmp_path / "ansible_collections/ftcluster/cluster"
    collection.mkdir(parents=True)
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, collection / name)
    for argv in (["git", "init", "-q"], ["git", "add", "--all"]):
        subprocess.run(argv, cwd=collection, check=True)
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-test", "sanity", "--color", "no",
         "--python", "{}.{}".format(*sys.version_info),
         *(word for name in TESTS for word in ("--test", name))],
        cwd=collection, capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
