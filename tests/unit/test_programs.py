"""Programs that control nodes and hosts of different versions start by name."""

import ast
import re
import subprocess
import sys

import pytest

from tests.programs import NODE_PATH, ROOT

# Names that a released control node starts on hosts, or that a run's files contain; they never
# change
PROGRAMS = (
    "ftcluster_common.process_one",
    "ftcluster_train.comm.connectivity",
    "ftcluster_train.engine.prepare",
    "ftcluster_train.engine.rank",
    "ftcluster_train.health.bench_all_reduce",
    "ftcluster_train.health.probe",
    "ftcluster_train.health.verify",
    "ftcluster_train.host.bind",
    "ftcluster_train.host.lease",
    "ftcluster_train.host.runs",
    "ftcluster_train.host.script",
    "ftcluster_train.host.stack",
    "ftcluster_train.host.supervisor",
)
# only the hosts' package; names of helpers may change
WITHIN_HOSTS = (
    "ftcluster_train.engine.tracker_packages",
    "ftcluster_train.supervisor.notification",
)
NEEDS_TORCH = ("ftcluster_train.engine", "ftcluster_train.health.bench_all_reduce")
NAMED = re.compile(r"-m[\"', ]+(ftcluster_(?:train|common)[\w.]*)")


def named() -> set[str]:
    """Return the modules that ftcluster starts with `-m`."""
    folders = ("runner", "plugins", "train", "common", "playbooks", "roles")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    texts = (path.read_text("utf-8") for path in files if path.suffix in (".py", ".yml", ".j2"))
    found = {name for text in texts for name in NAMED.findall(text)}
    plays = (path.read_text("utf-8") for path in (ROOT / "playbooks").rglob("*.yml"))
    programs = {
        name for play in plays for name in re.findall(r"^ +program: ([a-z_.]+)$", play, re.M)
    }
    return found | {f"ftcluster_train.{name}" for name in programs}


def test_only_lasting_names_are_started() -> None:
    assert named() - {*PROGRAMS, *WITHIN_HOSTS} == set()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_where_its_name_says(name: str) -> None:
    folder = "common" if name.startswith("ftcluster_common") else "train"
    path = (ROOT / folder / name.replace(".", "/")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert any(
        isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body
    )
    if not name.startswith(NEEDS_TORCH):
        program = f"import {name}"
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONPATH": NODE_PATH}, check=True, cwd="/"
        )
