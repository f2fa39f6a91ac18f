"""Linters and type checker, for the command that passes everything."""

import subprocess

from tests.programs import ROOT


def test_linters_find_nothing() -> None:
    done = subprocess.run(
        [ROOT / "scripts/lint"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
