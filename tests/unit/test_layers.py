"""The layers of the packages and the collection are those that CONTRIBUTING.md draws."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import ROOT

SOURCES = {"ftcluster": ROOT / "runner", "ftcluster_train": ROOT / "train", "plugins": ROOT}
COLLECTION = "ansible_collections.ftcluster.cluster."
LIBRARY = {"plugin_utils", "module_utils"}


def drawn_layers(package: str) -> list[list[str]]:
    """The rows of a package's picture, from top to bottom: names of modules and sub-packages."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = re.search(rf"^    {package}\n((?:    .+\n)+)", page, re.MULTILINE)
    assert picture, f"CONTRIBUTING.md has no picture of {package}"
    return [line.partition("#")[0].split() for line in picture[1].splitlines()]


def rooms_of(source: Path, package: str) -> set[str]:
    """The package's modules and sub-packages, as the picture names them."""
    found = (path.relative_to(source / package) for path in (source / package).rglob("*.py"))
    return {path.parts[0].removesuffix(".py") for path in found} - {"__init__"}


def imports(source: Path, package: str) -> Iterator[tuple[str, str, str]]:
    """Each import of the package's own: file and line, who imports, what is imported."""
    for path in sorted((source / package).rglob("*.py")):
        importer = path.relative_to(source / package).parts[0].removesuffix(".py")
        if importer == "__init__":  # its own modules take nothing of it
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: a relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                first, _, rest = name.removeprefix(COLLECTION).partition(".")
                if first == package and rest:
                    where = f"{path.relative_to(source)}:{node.lineno}"
                    yield where, importer, rest.partition(".")[0]


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
# what the command line imports besides the operations: what prints, and errors
PRINTS = {"cli", "operations", "progress", "text", "errors"}
KNOWS_FIELDS = "usage.py"  # which words are fields of a recipe
ADDS_COMMANDS = {"commands.py", "bench.py", "export.py"}
SHARED = {  # of several commands, or no command
    "ansible_options", "arguments", "connection", "help", "launch_arguments", "output", "parser",
    "process", "recipe", "usage", "commands",
}  # fmt: skip
MOST_LINES = 120


def test_the_command_line_parses_calls_and_prints() -> None:
    wrong = [
        f"{where} imports {imported}"
        for where, importer, imported in imports(SOURCES["ftcluster"], "ftcluster")
        if importer == "cli"
        and imported not in PRINTS | ({"recipe"} if KNOWS_FIELDS in where else set())
    ]
    assert wrong == []


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_a_command_is_short_and_imports_no_other(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^from ftcluster\.cli(?:\.(\w+))? import (\w+)", text, re.MULTILINE)
    others = {module or name for module, name in found} - SHARED
    assert path.name in ADDS_COMMANDS or not others
    assert len(text.splitlines()) <= MOST_LINES


# Few modules of a size that is read at once: a new one is for a purpose that none has yet, or for
# a task
MOST_MODULES = 120
OF_TASKS = ("engine/tasks/", "engine/data/")
LINES = range(40, 471)
SHORT = {  # of the hosts' package, with the reason
    "mpi": "what a script imports to get the backend; the entry point of torch names it",
}


def test_the_hosts_package_has_few_modules_of_a_readable_size() -> None:
    package = SOURCES["ftcluster_train"] / "ftcluster_train"
    lines = {
        str(path.relative_to(package).with_suffix("")): len(path.read_bytes().splitlines())
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert {name for name in lines if lines[name] not in LINES} == SHORT.keys()
    assert len([name for name in lines if not name.startswith(OF_TASKS)]) <= MOST_MODULES
