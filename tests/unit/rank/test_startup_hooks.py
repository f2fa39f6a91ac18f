"""Hooks that run after a module was imported."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from ftcluster_train.rank.startup_hooks import after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a package with a module `inner` that is not yet imported."""
    name = "made_for_after_import"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("value = 1\n")
    (tmp_path / name / "inner.py").write_text(f"from {name} import value\n")
    (tmp_path / name / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for module in (name, f"{name}.inner", f"{name}.broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return name


def test_it_is_called_once_the_module_is_complete(package: str) -> None:
    seen = []
    after_import(package, lambda: seen.append(sys.modules[package].value))  # type: ignore[attr-defined]
    for word in ("inner", "again"):
        after_import(f"{package}.inner", lambda word=word: seen.append(word))  # type: ignore[misc]
    assert importlib.util.find_spec(package) is not None  # searching is not importing
    assert seen == []
    importlib.import_module(f"{package}.inner")
    assert seen == [1, "inner", "again"]
    importlib.import_module(package)
    importlib.reload(sys.modules[package])
    assert seen == [1, "inner", "again"]


def test_a_module_that_was_imported_before(package: str) -> None:
    importlib.import_module(package)
    seen: list[int] = []
    after_import(package, lambda: seen.append(1))
    assert seen == [1]


def test_a_module_that_does_not_exist_or_fails(package: str) -> None:
    seen: list[int] = []
    for name in ("none", "broken"):
        after_import(f"{package}.{name}", lambda: seen.append(1))
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{package}.none'"):
        importlib.import_module(f"{package}.none")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(f"{package}.broken")
    assert seen == []
