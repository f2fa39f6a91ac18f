"""What the tests of the collection's own code share."""

import io
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils import basic

from tests.programs import ROOT

# The collection's files import each other by the name that they have once installed; here that name
# is the checkout, so that each is one module in this process, whatever loader of Ansible's is used.
for name, path in (
    ("ansible_collections.ftcluster", []),
    ("ansible_collections.ftcluster.cluster", [str(ROOT)]),
):
    package = ModuleType(name)
    package.__path__ = path
    sys.modules[name] = package


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
