"""Runs actions when a script's Python starts, and after the script has imported a module.

Only the standard library is used until torch is imported, because every rank waits for these
imports.
"""

import contextlib
import importlib
import os
import site
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ftcluster_common.protocol.launch import LAYER_VARIABLE

RENDEZVOUS = "torch.distributed.rendezvous"


def own_layer() -> str:
    """Return the folder with the packages that this run adds to the stack; "" if it adds none."""
    return os.environ.get(LAYER_VARIABLE, "")


def add_layer() -> None:
    """Make Python find the run's packages; packages of the stack take precedence."""
    if layer := own_layer():
        for folder in Path(layer).glob("lib/python3*/site-packages"):
            site.addsitedir(str(folder))


def after_import(name: str, action: Callable[[], object]) -> None:
    """Call `action` as soon as a module is imported, or at once if it is already imported."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name, self._action = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders find, with a loader that also calls the action."""
        if name != self._name:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in behind)
        spec = next((spec for spec in specs if spec), None)
        if spec and spec.loader:
            # a script may also check whether the module exists, without importing it
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._action()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def listen_at_one_address() -> None:
    """Make the store of `init_process_group` listen only at the address that the ranks use.

    By default, torch listens at all addresses of the host, although the store has no
    authentication.
    """
    from ftcluster_train.comm.connectivity import listen  # imported only when needed

    rendezvous: Any = importlib.import_module(RENDEZVOUS)
    store = rendezvous.TCPStore

    def at_one_address(
        host_name: str, port: int, world_size: int | None = None, is_master: bool = False,
        *more: Any, **options: Any,
    ) -> Any:  # fmt: skip
        if is_master:
            with contextlib.suppress(OSError):  # torch tries to listen too, and reports the error
                options["master_listen_fd"] = listen(host_name, port, world_size or 1).detach()
        return store(host_name, port, world_size, is_master, *more, **options)

    rendezvous.TCPStore = at_one_address
