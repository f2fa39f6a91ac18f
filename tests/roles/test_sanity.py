"""ansible-test sanity on the collection."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ansible_test
import pytest

from tests.programs import ROOT

PARTS = (
    "playbooks",
    "roles",
    "plugins",
    "meta",
    "tests/sanity",
    "galaxy.yml",
    "README.md",
    "LICENSE",
)
# tests that need no download
ALONE = (
    "action-plugin-docs", "compile", "empty-init", "ignores", "line-endings", "no-assert",
    "no-get-exception", "no-illegal-filenames", "no-smart-quotes", "replace-urlopen", "shebang",
    "symlinks", "use-argspec-type-path", "use-compat-six",
)  # fmt: skip
PYTHON = "{}.{}".format(*sys.version_info)


def sanity(tmp_path: Path, home: Path, *options: str) -> None:
    collection = tmp_path / "ansible_collections/ftcluster/cluster"
    for name in PARTS:
        (collection / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, collection / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, collection / name)
    for argv in (["git", "init", "-q"], ["git", "add", "--all"]):
        subprocess.run(argv, cwd=collection, check=True)
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-test", "sanity", "--color", "no",
         "--python", PYTHON, *options],
        cwd=collection, capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.more
def test_the_collection_is_sane(tmp_path: Path) -> None:
    sanity(tmp_path, tmp_path, *(word for name in ALONE for word in ("--test", name)))


@pytest.mark.long
def test_with_what_pip_downloads_it_is_sane(tmp_path: Path) -> None:
    home = ROOT / ".test_cache/ansible-test"
    # otherwise ansible-test downloads pip from a site besides the package index
    source = Path(ansible_test.__file__).parent / "_internal/python_requirements.py"
    version = re.search(r"pip='([\d.]+)'", source.read_text())
    assert version
    stand_in = home / f".ansible/test/cache/get_pip_{version[1].replace('.', '_')}.py"
    stand_in.parent.mkdir(parents=True, exist_ok=True)
    stand_in.write_text("import ensurepip\nensurepip.bootstrap()\n")
    # the plugins' environment lacks packaging, which ansible-core depends on
    skipped = ["--skip-test", "import", "--skip-test", "pslint"]
    sanity(tmp_path / "all", home, "--requirements", *skipped)
    imported = ["plugins/modules", "plugins/module_utils"]
    sanity(tmp_path / "import", home, "--requirements", "--test", "import", *imported)
