"""Programs of the hosts' package, run on this machine as the host."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.action import node_program

from tests.unit.hosts import Action, plugin

PROGRAM = """
import os, sys
print(os.getcwd(), sys.dont_write_bytecode, os.environ.get("A"), sys.argv[1:], sys.stdin.read())
print("why", file=sys.stderr)
sys.exit(len(sys.argv) - 2)
"""
WORDS = 'it\'s "$HOME" `x`\n' + 40_000 * "'"  # each shell would multiply the quotes


@pytest.fixture(autouse=True)
def no_ansible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # set in many containers
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    monkeypatch.setattr(ActionBase, "_compute_environment_string", lambda _: "A=b")
    host = Action()
    monkeypatch.setattr(
        ActionBase,
        "_low_level_execute_command",
        lambda _, command, sudoable, in_data: host._low_level_execute_command(
            f"echo a banner; {command}", sudoable, in_data
        ),
    )


def ran(stack: Path, *arguments: object, **more: Any) -> dict[str, Any]:
    given = {"stack": str(stack), "program": "host.said", "arguments": arguments, **more}
    done: dict[str, Any] = plugin(node_program, given).run()
    return done


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    package = tmp_path / "site/ftcluster_train/host"
    package.mkdir(parents=True)
    for path in (package / "__init__.py", package.parent / "__init__.py"):
        path.touch()
    (package / "said.py").write_text(PROGRAM)
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tmp_path


def test_a_program_runs_with_the_python_of_the_stack(stack: Path) -> None:
    done = ran(stack, WORDS, stdin="token")
    assert done.pop("stdout") == f"/ True b [{WORDS!r}] ********", "stdin may be a secret"
    assert done == {"rc": 0, "stderr": "why", "changed": True}
    failed = ran(stack, "list", 3, compiles="yes")
    assert (failed["rc"], failed["failed"], failed["stdout"]) == (
        1, True, "/ False b ['list', '3'] ",
    )  # fmt: skip


def test_without_a_stack_it_fails_as_a_command_does(tmp_path: Path) -> None:
    done = ran(tmp_path)
    assert (done["failed"], done["rc"], done["stdout"]) == (True, 127, "")
    assert f"{tmp_path}/bin/python: not found" in done["msg"] == done["stderr"]


@pytest.mark.parametrize("answer", ["", "[1]", '["a", 1, {}]', 100_000 * "["])
def test_a_host_that_answers_something_else(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"rc": 0, "stdout": f"ftcluster-answer: {answer}", "stderr": ""}
    monkeypatch.setattr(node_program, "execute", lambda *_: json.loads(json.dumps(said)))
    with pytest.raises(AnsibleActionFail, match="response is invalid"):
        ran(tmp_path)


@pytest.mark.parametrize("program", ["supervisor", "other.supervisor"])
def test_a_package_of_another_version_is_named(stack: Path, program: str) -> None:
    """Python reports that there is no such module, or that it is a package."""
    (stack / "site/ftcluster_train/supervisor").mkdir()
    (stack / "site/ftcluster_train/supervisor/__init__.py").touch()
    done = ran(stack, program=program)
    assert done["failed"]
    assert f"in {stack} on this host lacks the program {program}: run" in done["msg"]
    assert done["stderr"] == done["msg"]


def test_a_program_that_fails_for_want_of_another_module_says_which(stack: Path) -> None:
    (stack / "site/ftcluster_train/host/said.py").write_text("import ftcluster_other")
    done = ran(stack)
    assert "No module named 'ftcluster_other'" in done["stderr"]
    assert done["msg"] == "host.said ended with exit code 1"


def test_a_killed_program_is_not_taken_for_a_missing_stack(stack: Path) -> None:
    said = stack / "site/ftcluster_train/host/said.py"
    said.write_text("import os; os.write(2, b'half of it'); os.kill(os.getpid(), 11)")
    done = ran(stack)
    assert (done["rc"], done["msg"]) == (-11, "host.said was killed by signal 11 (SIGSEGV)")
    assert done["stderr"].splitlines() == ["half of it", done["msg"]]


def test_a_program_that_is_out_of_memory(stack: Path, tmp_path: Path) -> None:
    """The kernel counts such processes; here, a file replaces its counters."""
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 7\noom_kill 3\n")
    said = stack / "site/ftcluster_train/host/said.py"
    dies = "import os, pathlib; {}; os.kill(os.getpid(), 9)"
    program = node_program.RUN.replace("/proc/vmstat", str(counters))
    assert program != node_program.RUN
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_program, "RUN", program)
        said.write_text(dies.format("pass"))
        assert ran(stack)["msg"] == "host.said was killed by signal 9 (SIGKILL)"
        text = counters.read_text().replace("3", "4")
        said.write_text(dies.format(f"pathlib.Path({str(counters)!r}).write_text({text!r})"))
        done = ran(stack)
    assert "host.said was killed by the kernel: the host is out of memory" in done["msg"]
    assert done["stderr"] == done["msg"]
