"""The layers of the packages and the collection match the pictures in CONTRIBUTING.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import ROOT

SOURCES = {
    "ftcluster": ROOT / "runner",
    "ftcluster.operations": ROOT / "runner",
    "ftcluster_common": ROOT / "common",
    "ftcluster_common.tasks": ROOT / "common",
    "ftcluster_train": ROOT / "train",
    "ftcluster_train.engine": ROOT / "train",
    "ftcluster_train.engine.tasks": ROOT / "train",
    "ftcluster_train.rank": ROOT / "train",
    "ftcluster_train.supervisor": ROOT / "train",
    "plugins": ROOT,
}
# packages that work without ftcluster
ALONE = ("ftcluster_kernels", "ftcluster_mpi")
COLLECTION = "ansible_collections.ftcluster.cluster."
LIBRARY = {"plugin_utils", "module_utils"}


def drawn_layers(package: str) -> list[list[str]]:
    """Return the rows of a package's picture from top to bottom: modules and sub-packages."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = re.search(rf"^    {package}\n((?:    .+\n)+)", page, re.MULTILINE)
    assert picture, f"CONTRIBUTING.md has no picture of {package}"
    return [line.partition("#")[0].split() for line in picture[1].splitlines()]


def folder_of(source: Path, package: str) -> Path:
    return source / Path(*package.split("."))


def rooms_of(source: Path, package: str) -> set[str]:
    """Return the package's modules and sub-packages with the names of the picture."""
    folder = folder_of(source, package)
    files = (path.relative_to(folder) for path in folder.rglob("*.py"))
    return {path.parts[0].removesuffix(".py") for path in files} - {"__init__"}


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of each import, including `import_module("...")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def imports(source: Path, package: str) -> Iterator[tuple[str, str, str]]:
    """Yield each import within the package: file and line, importing part, imported part."""
    folder = folder_of(source, package)
    for path in sorted(folder.rglob("*.py")):
        importer = path.relative_to(folder).parts[0].removesuffix(".py")
        if importer == "__init__":  # the package's own modules import nothing from it
            continue
        for line, name in imported_names(ast.parse(path.read_text(encoding="utf-8"))):
            rest = name.removeprefix(COLLECTION).removeprefix(f"{package}.")
            if rest != name.removeprefix(COLLECTION):
                yield f"{path.relative_to(source)}:{line}", importer, rest.partition(".")[0]


@pytest.mark.parametrize("package", ALONE)
def test_a_package_of_its_own_imports_nothing_of_ftcluster(package: str) -> None:
    taken = {
        f"{path.name}:{line}: {name}"
        for path in folder_of(ROOT / "train", package).rglob("*.py")
        for line, name in imported_names(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith(("ftcluster", "ansible_collections")) and not name.startswith(package)
    }
    assert taken == set()


@pytest.mark.parametrize("package", SOURCES)
def test_every_room_is_drawn(package: str) -> None:
    drawn = [name for row in drawn_layers(package) for name in row]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == rooms_of(SOURCES[package], package)


@pytest.mark.parametrize("package", SOURCES)
def test_imports_go_down(package: str) -> None:
    row_of = {name: i for i, row in enumerate(drawn_layers(package)) for name in row}
    wrong = [
        f"{where}: {importer} imports {imported}"
        for where, importer, imported in imports(SOURCES[package], package)
        if imported in row_of and imported != importer and row_of[imported] <= row_of[importer]
    ]
    assert wrong == []


TASKS = "ftcluster_train.engine.tasks"


def taken_of_tasks(package: Path) -> set[str]:
    """Return each import of a task's folder by code outside of the tasks: file, line and name."""
    room = folder_of(package.parent, TASKS)
    folders = {path.name for path in room.iterdir() if (path / "__init__.py").exists()}
    return {
        f"{path.relative_to(package)}:{line}: {name}"
        for path in package.rglob("*.py")
        if not path.is_relative_to(room)
        for line, name in imported_names(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith(f"{TASKS}.") and name.removeprefix(f"{TASKS}.").split(".")[0] in folders
    }


def test_nothing_outside_of_the_tasks_imports_the_folder_of_one() -> None:
    assert taken_of_tasks(ROOT / "train/ftcluster_train") == set()


def test_an_import_of_a_tasks_folder_is_seen(tmp_path: Path) -> None:
    engine = tmp_path / "ftcluster_train" / "engine"
    (engine / "tasks" / "squad").mkdir(parents=True)
    (engine / "tasks" / "squad" / "__init__.py").touch()
    (engine / "tasks" / "squad" / "spans.py").write_text(f"import {TASKS}.squad.places\n")
    (engine / "loop.py").write_text(f"from {TASKS} import base, squad\nimport {TASKS}.base\n")
    assert taken_of_tasks(tmp_path / "ftcluster_train") == {f"engine/loop.py:1: {TASKS}.squad"}


def test_the_control_node_takes_only_the_library_of_the_collection() -> None:
    taken = set()
    for path in (ROOT / "runner").rglob("*.py"):
        names = re.findall(
            rf"^from {re.escape(COLLECTION)}plugins\.(\w+)", path.read_text("utf-8"), re.MULTILINE
        )
        taken |= {(str(path), name) for name in names if name not in LIBRARY}
    assert taken == set()


def test_an_arrow_up_is_seen(tmp_path: Path) -> None:
    room = tmp_path / "ftcluster" / "planning"
    room.mkdir(parents=True)
    (room / "plan.py").write_text(
        "from ftcluster.cli import main\nimport ftcluster.launch.mpirun\n"
    )
    assert [arrow[1:] for arrow in imports(tmp_path, "ftcluster")] == [
        ("planning", "cli"),
        ("planning", "launch"),
    ]


CLI = ROOT / "runner/ftcluster/cli"
# imports of the command line besides operations: modules that print, and errors
PRINTS = {"cli", "operations", "progress", "text", "errors"}
KNOWS_FIELDS = "usage.py"  # knows which words are fields of a recipe
ADDS_COMMANDS = {"commands.py", "bench.py", "export.py"}
SHARED = {  # modules of several commands, or of no command
    "ansible_options", "arguments", "connection", "help", "launch_arguments", "output", "parser",
    "process", "recipe", "usage", "commands",
}  # fmt: skip


def test_the_command_line_parses_calls_and_prints() -> None:
    wrong = [
        f"{where} imports {imported}"
        for where, importer, imported in imports(SOURCES["ftcluster"], "ftcluster")
        if importer == "cli"
        and imported not in PRINTS | ({"recipe"} if KNOWS_FIELDS in where else set())
    ]
    assert wrong == []


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_a_command_imports_no_other(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^from ftcluster\.cli(?:\.(\w+))? import (\w+)", text, re.MULTILINE)
    others = {module or name for module, name in found} - SHARED
    assert path.name in ADDS_COMMANDS or not others


def test_an_import_by_string_is_seen(tmp_path: Path) -> None:
    room = tmp_path / "ftcluster_train" / "rank"
    room.mkdir(parents=True)
    (room / "script.py").write_text('importlib.import_module("ftcluster_train.engine.loop")\n')
    assert [arrow[1:] for arrow in imports(tmp_path, "ftcluster_train")] == [("rank", "engine")]
