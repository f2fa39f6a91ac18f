"""Python imports from the current folder with -m and -c, which may be another user's.

A program that ftcluster starts says -I or -P, or starts in /, where only root has files.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.action import node_program
from ansible_collections.ftcluster.cluster.plugins.module_utils.given_python import given_python
from ansible_collections.ftcluster.cluster.plugins.modules import host_facts
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.download import (
    Sources,
    Target,
    pip_command,
)

from ftcluster.export import exporter

ROOT = Path(__file__).parents[2]
SAFE = ("-I", "-P")
# modules whose argument lists have -m without -I or -P, with the number of such lists and the
# reason why nothing is imported from another user's folder. Hosts may have Python 3.10, which does
# not know -P
IN_ROOTS_FOLDER = {
    "common/ftcluster_common/protocol/launch.py": (
        1,
        "rank_launch.py and the pasted text start mpirun in /",
    ),
    "runner/ftcluster/launch/runs.py": (1, "cwd is /"),
    "train/ftcluster_train/health/verify.py": (2, "ssh enters / and cwd is /"),
    "train/ftcluster_train/supervisor/background.py": (1, "the unit's WorkingDirectory is /"),
    "train/ftcluster_train/supervisor/leases.py": (1, "cwd is /, and ssh enters /"),
    "train/ftcluster_train/supervisor/link_check.py": (1, "cwd is /, and ssh enters /"),
    "train/ftcluster_train/supervisor/notifier.py": (1, "cwd is /"),
    "plugins/action/node_program.py": (1, "the program that RUN starts has / as cwd"),
    "runner/ftcluster/user_script/requirements.py": (1, "an option of pip's files"),
    # arguments of the interpreter that common/ftcluster_common/protocol/launch.py starts
    "runner/ftcluster/launch/mpirun.py": (1, "the ranks' program"),
    "runner/ftcluster/launch/script_run.py": (1, "the ranks' program"),
    "runner/ftcluster/benchmark/all_reduce.py": (1, "the ranks' program"),
    # a user's own module, which is in the folder that the user names
    "runner/ftcluster/user_script/command.py": (1, "arguments of the user's own script"),
}
# shells, and programs whose -m or -c has another meaning
OTHERS = {"sh", "bash", "mkdir", "busctl", "ipcrm", "id", "srun"}
PRODUCT = ("runner", "common", "train", "plugins", "playbooks", "roles", "scripts", "docs")
# a command in a shell or on a page; bench and tests are started in a checkout and import from it
COMMAND = re.compile(
    r"(?:python[\d.]*|executable|interpreter)[ )}\"']*?((?: -\w+)*?) -[mc](?= )"
    r"(?! (?:bench|tests)\b)"
)
IN_TEXT = {
    "runner/ftcluster/__main__.py": "a user types it, in a folder of the user's choice",
    "plugins/action/verify.py": "BEGIN enters /",
    "runner/ftcluster/launch/mpirun.py": "the text begins with cd /",
    "playbooks/files/system_report.sh": "-I is there, behind a variable",
}


def argument_lists(tree: ast.AST) -> Iterator[tuple[int, list[object]]]:
    """Yield line and elements of each list or tuple; None replaces non-constant elements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            yield node.lineno, [getattr(part, "value", None) if isinstance(part, ast.Constant)
                                else None for part in node.elts]  # fmt: skip


def unsafe_lists(text: str) -> list[int]:
    """Return the lines of argument lists with -m or -c of a Python that may import from cwd."""
    lines = []
    for line, words in argument_lists(ast.parse(text)):
        for number, word in enumerate(words):
            if word not in ("-m", "-c") or number + 1 == len(words):
                continue
            before = words[:number]
            if not (OTHERS & set(map(str, before))) and not set(SAFE) & set(map(str, before)):
                lines.append(line)
    return lines


def modules() -> Iterator[tuple[str, str]]:
    for folder in PRODUCT[:4]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def test_no_argument_list_lets_python_import_from_the_current_folder() -> None:
    found = {name: unsafe_lists(text) for name, text in modules()}
    counted = {name: len(lines) for name, lines in found.items() if lines}
    assert counted == {name: count for name, (count, _) in IN_ROOTS_FOLDER.items()}, found


def test_the_lint_itself() -> None:
    assert unsafe_lists('run([python, "-m", "pip"])') == [1]
    assert unsafe_lists('run((sys.executable, "-B", "-c", program))') == [1]
    assert not unsafe_lists('run([python, "-I", "-B", "-m", "pip"])')
    assert not unsafe_lists('run(["sh", "-c", text])')
    assert COMMAND.search("/opt/bin/python -B -m pip install x")
    assert COMMAND.search("python3.11 -c 'import x'")
    assert COMMAND.search("{shlex.quote(python)} -B -c {program}")
    assert COMMAND.search("{{ stack }}/bin/python -m venv x")


def test_no_command_of_a_text_lets_python_import_from_the_current_folder() -> None:
    """Check shell scripts, templates, playbooks, messages and pages."""
    found = []
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if not path.is_file() or path.suffix in (".so", ".svg", ".png", ".pyc", ".whl"):
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                for flags in COMMAND.findall(line):
                    if not set(SAFE) & set(flags.split()) and name not in IN_TEXT:
                        found.append(f"{name}:{number}: {line.strip()}")
    assert [line for line in found if not is_a_name_of_a_program(line)] == []


def is_a_name_of_a_program(line: str) -> bool:
    """Return True for documentation that names a program which ftcluster starts."""
    return bool(re.search(r"-m (ftcluster_train|\$M|ftcluster_common)\b", line))


# modules that Python itself, pip and venv import early; `encodings` is imported before the path is
# set
PLANTED = (
    "json", "pip", "venv", "platform", "subprocess", "encodings", "sitecustomize", "ftcluster",
    "ansible", "ctypes", "logging", "argparse", "importlib", "zipfile", "bz2",
)  # fmt: skip


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put another user's modules into the current folder; fail if one was executed."""
    folder, ran = tmp_path / "theirs", tmp_path / "ran"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(
            f"open({str(ran)!r}, 'a').write({name!r} + '\\n')\nraise SystemExit(66)\n"
        )
    (folder / "pip.conf").write_text("[global]\nindex-url = https://mallory.test/\n")
    (folder / "setup.cfg").write_text("[install]\nprefix = /mallory\n")
    monkeypatch.chdir(folder)
    # the attack works without protection
    subprocess.run([sys.executable, "-m", "pip", "--version"], check=False)
    assert ran.read_text().splitlines()[-1] in PLANTED
    ran.unlink()
    yield folder
    assert not ran.exists(), ran.read_text()


class Module:
    """An Ansible module that runs commands like AnsibleModule."""

    @staticmethod
    def run_command(argv: list[str]) -> tuple[int, str, str]:
        """Run a command in the current folder."""
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("planted")
def test_pip_is_not_taken_from_the_current_folder() -> None:
    done = subprocess.run([*pip_command(), "--version"], capture_output=True, text=True, check=True)
    assert "mallory" not in done.stdout
    listed = subprocess.run(
        [*pip_command(), "config", "list"], capture_output=True, text=True, check=True
    )
    assert "mallory" not in listed.stdout


@pytest.mark.usefixtures("planted")
def test_an_exporters_environment_is_not_made_by_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class House:
        folder, files = tmp_path / "house", ()

    monkeypatch.setattr(exporter, "get_wheels", lambda *_: House)
    monkeypatch.setattr(exporter, "verify", lambda *_, **__: None)
    commands = []
    run = subprocess.run

    def record(command: list[str], **words: object) -> object:
        commands.append(command)
        return run(command if "venv" in command else [sys.executable, "-I", "-c", ""], **words)  # type: ignore[call-overload]

    monkeypatch.setattr(exporter.subprocess, "run", record)
    exporter._make(tmp_path / "made", None, Target("3.11", "2.36", "x86_64"), Sources())  # type: ignore[arg-type]
    assert (tmp_path / "made/bin/python").exists()
    assert all("-I" in command[:2] for command in commands)


@pytest.mark.usefixtures("planted")
def test_pythons_of_a_host_are_looked_at_without_the_current_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"python3.{sys.version_info.minor}"
    monkeypatch.setattr(
        host_facts.shutil, "which", lambda word: sys.executable if word == name else None
    )
    monkeypatch.setattr(host_facts.sys, "version_info", (3, 8))
    found = host_facts.pythons(Module)
    assert len(found) == 2
    assert found[1]["version"] == ".".join(map(str, sys.implementation.version[:3]))
    path = str(Path(sys.executable))
    assert given_python(path, False, Module.run_command).startswith("3.")


@pytest.mark.usefixtures("planted")
def test_a_program_of_the_hosts_package_runs_without_the_current_folder() -> None:
    words = [sys.executable, "-I", "-B", "-c", node_program.RUN]
    given = json.dumps([[sys.executable, "-B", "-m", "platform"], ""]).encode()
    done = subprocess.run(words, input=given, capture_output=True, check=True)
    assert json.loads(done.stdout.partition(b":")[2])[0] == 0


def test_the_command_itself_starts_in_the_current_folder(planted: Path) -> None:
    """A console script of pip has its own folder first on the path, and not cwd."""
    paths = os.pathsep.join(path for path in sys.path if path)
    script = planted.parent / "ftcluster"
    script.write_text("import sys\nfrom ftcluster.cli.main import main\nsys.exit(main())\n")
    done = subprocess.run(
        [sys.executable, str(script), "version"], env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
