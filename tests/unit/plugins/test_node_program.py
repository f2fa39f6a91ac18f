"""What runs a program of the package that trains."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ftcluster.cluster.plugins.modules.node_program import main

PROGRAM = """
import os, sys
print(os.getcwd(), sys.dont_write_bytecode, *sys.argv[1:], sys.stdin.read())
sys.exit(len(sys.argv) - 2)
"""


def ran(stack: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    given = {"stack": str(stack), "program": "host.said", "arguments": arguments, "stdin": "token"}
    with patch_module_args(given), pytest.raises(SystemExit):
        main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_program_runs_with_the_python_of_the_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "site/ftcluster_train/host"
    package.mkdir(parents=True)
    for path in (package / "__init__.py", package.parent / "__init__.py"):
        path.touch()
    (package / "said.py").write_text(PROGRAM)
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = ran(tmp_path, capsys, "list")
    assert (done["rc"], done["stdout"], done["changed"]) == (0, "/ True list ********", True), (
        "what it read from stdin may be a secret"
    )
    failed = ran(tmp_path, capsys, "list", "more")
    assert (failed["rc"], failed["failed"]) == (1, True)


def test_without_a_stack_it_fails_as_a_command_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = ran(tmp_path, capsys)
    assert (done["failed"], done["rc"], done["stdout"]) == (True, 2, "")
