"""Import transformers without work that a rank does not need.

transformers reads the sources of all its models twice to list their classes. `read_models_once`
keeps the first list.

transformers also marks some functions for torch's compiler (torch._dynamo), and torch imports the
compiler to exclude its optimizers from it. Ranks compile nothing, so `import_transformers` defers
this import. It then happens when a model is saved: accelerate asks
the compiler about the model.

While the block `without_compiler` is active, stand-ins take the place of the compiler:

- Marks for the compiler are kept, and applied if something imports the compiler later.
- A name that is imported from a stand-in is looked up in the real module when it is first used.

Afterwards, `import torch._dynamo` imports the real module, as in any other program. Any other use
of a stand-in also imports the real module, so a new version of transformers loses only time.
"""

import contextlib
import gc
import importlib
import pickle
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ftcluster_train.rank.startup_hooks import after_import

COMPILER = "torch._dynamo"
# the module of the compiler from which transformers imports a class
BY_NAME = f"{COMPILER}._trace_wrapped_higher_order_op"
EXCLUDED = "__dynamo_disable"  # the attribute of torch._compile for a function that it has excluded

# modules of transformers that mark functions; a model's module needs both
MODULES = ("transformers.modeling_utils", "transformers.generation.utils")
LISTS = "transformers.utils.import_utils"  # the module that lists the classes of models


def read_models_once() -> None:
    """Make transformers, when it is imported, read each folder with models only once."""
    after_import(LISTS, _keep_lists)


def _keep_lists() -> None:
    lists: Any = importlib.import_module(LISTS)
    name = "create_import_structure_from_path"
    if (read := getattr(lists, name, None)) is None:  # another version of transformers
        return
    models = str(Path(lists.__file__).parents[1] / "models")
    kept: list[bytes] = []

    def read_once(module_path: str | Path) -> Any:
        if str(module_path) not in (models, f"{models}/__init__.py"):
            return read(module_path)
        if not kept:
            kept.append(pickle.dumps(read(models)))
        return pickle.loads(kept[0])  # a copy, because callers change the list

    setattr(lists, name, read_once)


def import_transformers() -> None:
    """Import the modules that all models need, and let torch run without its compiler."""
    read_models_once()
    with without_compiler():
        for name in MODULES:
            importlib.import_module(name)
    keep_uncompiled()


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Defer the import of torch's compiler by the modules that are imported in this block.

    If the compiler is already imported, for example by an extension of torch, nothing changes.
    """
    importlib.import_module("torch")
    if COMPILER in sys.modules:
        yield
        return
    compiler = _Compiler(COMPILER)
    sys.modules[COMPILER] = compiler
    sys.modules[BY_NAME] = _StandIn(BY_NAME)
    sys.meta_path.insert(0, _Submodules())
    try:
        yield
    finally:
        _remove_stand_ins()
    after_import(COMPILER, compiler.apply_marks)


def keep_uncompiled() -> None:
    """Let functions of torch run without importing the compiler only to exclude them from it.

    For example, torch imports the compiler when the first optimizer is created. If something else
    imports the compiler later, torch excludes the functions as usual.
    """
    exclude: Any = importlib.import_module("torch._compile")._disable_dynamo
    wrapper = exclude(lambda: None).__code__
    found = (
        _variables(each)["fn"]
        for each in gc.get_objects()
        if type(each) is FunctionType and each.__code__ is wrapper
    )
    functions = [function for function in found if type(function) is FunctionType]
    if COMPILER in sys.modules:
        return
    for function in functions:
        setattr(function, EXCLUDED, function)
    after_import(COMPILER, lambda: [vars(function).pop(EXCLUDED, None) for function in functions])


def _variables(function: FunctionType) -> dict[str, Any]:
    """Return the variables of the function in which a function was defined."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


class _StandIn(ModuleType):
    """A module whose names are looked up in the real module when they are used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return _Deferred(self.__name__, name)


class _Compiler(_StandIn):
    """The stand-in for torch._dynamo, which keeps the marks of functions."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # of a package; `_Submodules` finds its modules
        self._allowed: list[Any] = []
        self._constant: list[Any] = []

    def disable(
        self, fn: Any = None, recursive: bool = True, *, reason: str | None = None, **more: Any
    ) -> Any:
        """Exclude a function as torch does for its own functions: when it is first called."""
        if fn is not None and not isinstance(fn, FunctionType):
            return _real(COMPILER).disable(fn, recursive, reason=reason, **more)
        exclude: Any = importlib.import_module("torch._compile")._disable_dynamo
        return exclude(fn, recursive)

    def allow_in_graph(self, fn: Any) -> Any:
        """Keep the mark of a function that the compiler calls without looking into it."""
        self._allowed.append(fn)
        return fn

    def assume_constant_result(self, fn: Any) -> Any:
        """Keep the mark of a function whose result never changes."""
        self._constant.append(fn)
        return fn

    def apply_marks(self) -> None:
        """Apply the kept marks with the real compiler."""
        compiler: Any = sys.modules[COMPILER]
        for function in self._allowed:
            compiler.allow_in_graph(function)
        for function in self._constant:
            compiler.assume_constant_result(function)


class _Deferred:
    """A name of a module, which is looked up when the name is used."""

    def __init__(self, module: str, name: str) -> None:
        self.__module, self.__name = module, name

    def __look_up(self) -> Any:
        return getattr(_real(self.__module), self.__name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__look_up()(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__look_up(), name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.__look_up(),)

    def __instancecheck__(self, value: object) -> bool:
        module = sys.modules.get(self.__module)
        # a value of this class can exist only if the real module has been imported
        return not isinstance(module, _StandIn | None) and isinstance(value, self.__look_up())

    def __or__(self, other: Any) -> Any:
        return self.__look_up() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.__look_up()


def _real(name: str) -> Any:
    """Return a real module; the stand-ins of all modules end, because it may import the others."""
    if isinstance(sys.modules.get(name), _StandIn):
        _remove_stand_ins()
    return importlib.import_module(name)


def _remove_stand_ins() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Submodules)]
    for name in (COMPILER, BY_NAME):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


class _Submodules(MetaPathFinder):
    """Finds the submodules of the compiler without stand-ins, by importing the real compiler."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec that loads the real submodule."""
        del path, target
        if not name.startswith(f"{COMPILER}."):
            return None
        _remove_stand_ins()
        return ModuleSpec(name, _Imported(importlib.import_module(name)))


class _Imported(Loader):
    """A loader of a module that is already imported."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back."""
        module.__spec__ = self._spec
