"""What the tests of the collection's own code share."""

import importlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils import basic

COLLECTION = "ansible_collections.ftcluster.cluster."


class Checkout(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has the collection's files import each other from the checkout.

    They name each other as they are called when the collection is installed, the tests as they are
    called here; both are the same modules then.
    """

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        ours = name.startswith(f"{COLLECTION}plugins")
        return importlib.machinery.ModuleSpec(name, self) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return importlib.import_module(spec.name.removeprefix(COLLECTION))

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed by the name it has here."""


CHECKOUT = Checkout()
sys.meta_path.insert(0, CHECKOUT)


@pytest.fixture(autouse=True)
def one_module_by_both_names() -> None:
    """Undo what Ansible's own loader leaves where tests of roles ran in the same process."""
    if sys.meta_path[0] is not CHECKOUT:
        sys.meta_path.remove(CHECKOUT)
        sys.meta_path.insert(0, CHECKOUT)
    for name in [name for name in sys.modules if name.startswith(f"{COLLECTION}plugins")]:
        if sys.modules[name] is not sys.modules.get(name.removeprefix(COLLECTION)):
            del sys.modules[name]


@pytest.fixture
def run_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Run a module's main function in this process, as Ansible would."""

    def run(main: Callable[[], None], check: bool = False, **parameters: Any) -> dict[str, Any]:
        arguments = {**parameters, "_ansible_check_mode": check}
        monkeypatch.setattr(
            basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()
        )
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        monkeypatch.setattr("sys.stdin", io.StringIO())
        with pytest.raises(SystemExit):
            main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run
