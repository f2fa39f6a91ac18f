"""Python packages whose modules are texts in memory. Standard library only."""

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

INIT = "__init__"  # the module of the package itself


class _Texts(MetaPathFinder, Loader):
    """Finds and executes the modules of the packages that `add_package` has added."""

    def __init__(self) -> None:
        self.texts: dict[str, tuple[str, Path]] = {}  # text and location, by module name

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module, or None if the module is in no package of this finder."""
        if fullname not in self.texts:
            return None
        is_package = "." not in fullname
        return spec_from_loader(
            fullname, self, origin=str(self.texts[fullname][1]), is_package=is_package
        )

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module's text."""
        text, path = self.texts[module.__name__]
        module.__file__ = str(path)
        exec(compile(text, str(path), "exec"), module.__dict__)


_TEXTS = _Texts()


def add_package(name: str, modules: Mapping[str, str], folder: Path) -> None:
    """Make modules available as `name` and `name.MODULE`, without executing them.

    Args:
        name: name of the package, without a dot.
        modules: texts of the modules by their names, with the package's own text under INIT.
        folder: location of the modules, for tracebacks.
    """
    if _TEXTS not in sys.meta_path:
        sys.meta_path.append(_TEXTS)
    for module, text in modules.items():
        full_name = name if module == INIT else f"{name}.{module}"
        _TEXTS.texts[full_name] = text, folder / f"{module}.py"


def execute_package(name: str) -> ModuleType:
    """Execute the text of a package that `add_package` has added, and return the package.

    If the text raises an exception, the package and its modules are removed from sys.modules.
    """
    spec = _TEXTS.find_spec(name, None)
    assert spec, "add_package was called"
    package = module_from_spec(spec)
    sys.modules[name] = package  # modules of the package import it
    try:
        _TEXTS.exec_module(package)
    except BaseException:
        for loaded in [*sys.modules]:
            if loaded == name or loaded.startswith(f"{name}."):
                del sys.modules[loaded]
        raise
    return package
