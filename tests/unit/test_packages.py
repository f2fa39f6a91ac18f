import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement

from ftcluster_common import NEXT_RELEASE, RELEASE, __version__

ROOT = Path(__file__).parents[2]


def test_the_release_comes_from_one_place() -> None:
    """Tags define releases; ftcluster_common, galaxy.yml and the changelog have the next one."""
    for folder in (ROOT, ROOT / "train"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        assert project["project"]["dynamic"] == ["version"]
        path = folder / project["tool"]["hatch"]["version"]["path"]
        assert path.resolve() == ROOT / "hatch_version.py"
    assert __version__.startswith(RELEASE)
    assert yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"] == NEXT_RELEASE
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == NEXT_RELEASE


def test_the_long_description_has_no_relative_links() -> None:
    """A package index shows the page without the repository's files."""
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    text = metadata.core.readme
    assert text.startswith("# ftcluster\n")
    assert re.findall(r"\]\((?!https:)[^)]*\)|\]:|(?:src|href)=", text) == []
    assert metadata.core.authors


def test_the_projects_addresses_are_the_collections() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    assert project["urls"] == {"Repository": galaxy["repository"]}
    assert [author["name"] for author in project["authors"]] == galaxy["authors"]


def test_neither_package_depends_on_what_the_other_side_has() -> None:
    control = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    node = tomllib.loads((ROOT / "train/pyproject.toml").read_text())["project"]["dependencies"]
    assert not any("torch" in name or "transformers" in name for name in control)
    assert not any("ansible" in name for name in node)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("lock", ["control", "dev"])
def test_a_lock_has_one_version_of_each_package_for_a_python(lock: str, python: str) -> None:
    """Check each Python version of the lock's range."""
    environment = {"python_version": python, "python_full_version": f"{python}.9"}
    text = (ROOT / f"requirements/{lock}.txt").read_text(encoding="utf-8")
    lines = re.findall(r"^([\w.-]+==[^\\\n]+?) \\$", text, re.MULTILINE)
    pins = [
        pin
        for pin in map(Requirement, lines)
        if pin.marker is None or pin.marker.evaluate(environment)
    ]
    versions = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(versions) == len(pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(project["optional-dependencies"]["dev"] if lock == "dev" else ()),
    ]
    for one in map(Requirement, wanted):
        assert versions[one.name.lower()] in one.specifier, one


def test_the_hosts_package_never_unpickles() -> None:
    """Unpickling executes code, and the ranks' connections have no authentication.

    SetFit reads its head from a pickle, so one module writes a pickle, but reads none.
    """
    found = []
    for path in sorted((ROOT / "train/ftcluster_train").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            found += [f"{path.name}:{node.lineno}: {name}" for name in unpickling(node)]  # type: ignore[attr-defined]
        if path.name == "setfit_files.py":
            assert len(found) == 1
            assert found.pop().endswith(": pickle")
            names = [
                ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
            ]
            used = {name for name in names if name.startswith("pickle.")}
            assert used == {"pickle.dumps", "pickle.STOP"}
    assert found == []


def unpickling(node: ast.AST) -> list[str]:
    """Return the unpickling function that a statement or call uses."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or "", *(alias.name for alias in node.names)]
    elif isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("torch.load", "np.load")):
        safe = [ast.unparse(word) for word in node.keywords]
        return [] if "weights_only=True" in safe else [ast.unparse(node)]
    else:
        names = []
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    return [
        name
        for name in names
        if name.partition(".")[0] in modules or name.endswith(("_object", "_object_list"))
    ]


def test_unpickling_is_seen() -> None:
    for code in (
        "import pickle", "from pickle import loads", "torch.load(path)", "import joblib as j",
        "torch.load(path, weights_only=False)", "dist.all_gather_object(values, value)",
        "from torch.distributed import broadcast_object_list",
    ):  # fmt: skip
        assert [name for node in ast.walk(ast.parse(code)) for name in unpickling(node)], code
