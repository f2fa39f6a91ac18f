"""The files of the node image are consistent with each other, the manifests and the roles."""

import re
import subprocess
from fnmatch import fnmatch

import yaml

from ftcluster.export.kubernetes import ACCOUNT
from ftcluster.export.node_image import FILES
from ftcluster.export.pods import STACK, TCMALLOC, VOLUME
from tests.programs import ROOT

TEXT = (FILES / "Dockerfile").read_text()
STEPS = [
    step.split(maxsplit=1)
    for step in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if step
]


def steps(kind: str) -> list[str]:
    return [words for name, words in STEPS if name == kind]


def test_it_copies_all_files_and_no_other() -> None:
    there = {path.name for path in FILES.iterdir()} - {"Dockerfile"}
    there |= {"requirements.txt", "ftcluster_train-0.1.0-py3-none-any.whl"}
    patterns = [name for words in steps("COPY") for name in words.split()[:-1]]
    assert {name for name in there for one in patterns if fnmatch(name, one)} == there
    assert all(any(fnmatch(name, one) for name in there) for one in patterns)


def test_a_shell_understands_its_commands() -> None:
    for words in steps("RUN"):
        subprocess.run(["sh", "-n", "-c", words], check=True)


def test_its_paths_and_account_are_those_of_the_manifests() -> None:
    assert f"python3 -I -m venv {STACK} " in TEXT
    assert VOLUME in TEXT
    assert steps("USER") == [f"{ACCOUNT}:{ACCOUNT}"]
    assert f"--uid {ACCOUNT} " in TEXT


def test_its_allocator_is_that_of_the_role() -> None:
    roles = yaml.safe_load((ROOT / "roles/tcmalloc/vars/main.yml").read_text())
    assert f" {roles['tcmalloc__packages']['Debian-12']} " in TEXT
    assert TCMALLOC.endswith("libtcmalloc_minimal.so.4")
