"""Linters and type checker as tests, for `./test all`."""

import re
import subprocess

import pytest

from tests.programs import ROOT

LINT = ROOT / "scripts/lint"
NAMES = dict.fromkeys(re.findall(r"^check (\S+)", LINT.read_text(), re.MULTILINE))


@pytest.mark.more
# one test per linter, because a test that measures waits for the others
@pytest.mark.parametrize("name", NAMES)
def test_linters_find_nothing(name: str) -> None:
    done = subprocess.run(
        [LINT, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert f"lint: {name}" in done.stdout
    assert done.returncode == 0, done.stdout
