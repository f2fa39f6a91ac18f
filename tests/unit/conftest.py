"""Fixtures of the unit tests."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils import basic

from tests.programs import ROOT
from tests.unit.shell import Output, Said, Shell

# The collection's files import each other by their installed name. Here this name refers to the
# checkout, so that each file is one module in this process, whichever loader Ansible uses.
for name, path in (
    ("ansible_collections.ftcluster", []),
    ("ansible_collections.ftcluster.cluster", [str(ROOT)]),
):
    package = ModuleType(name)
    package.__path__ = path
    sys.modules[name] = package


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the control node an empty state in each test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of the record on the head, which the module changes as on a host."""
    from ansible_collections.ftcluster.cluster.plugins.modules.cluster_record import settle

    from ftcluster.ansible.inventory import Inventory
    from ftcluster.ansible.playbooks import Record
    from ftcluster.errors import FtclusterError
    from ftcluster.provision import shared
    from ftcluster.provision.stages import StagesResult

    file = tmp_path / "prefix" / "cluster.json"
    file.parent.mkdir()

    def run_stages(
        playbook: Record, paths: tuple[Path, ...], options: Sequence[str], _: object
    ) -> StagesResult:
        name = options[-1]
        try:
            _, text = settle(file, "present", "", playbook.record_changes, False)
        except ValueError as error:  # the module fails
            raise FtclusterError(f"record failed on 1 of 1 hosts\n  {name}: {error}") from error
        return StagesResult(Inventory(paths, (name,), (name,)), records={name: text})

    monkeypatch.setattr(shared, "run_stages", run_stages)
    return file


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


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run a command, given as a list or a line, which must end with this exit code."""

    def run(words: str | Sequence[str], code: int = 0) -> Output:
        from ftcluster.cli.main import main

        assert main(words.split() if isinstance(words, str) else list(words)) == code
        return Output(*capsys.readouterr())

    return run


# Messages to users, by the test that produces them: only here are whole sentences compared.
# FTCLUSTER_RENEW_SENTENCES=1 ./test unit renews the file; read the difference.
SENTENCES = Path(__file__).with_name("sentences.json")
RENEW = "FTCLUSTER_RENEW_SENTENCES" in os.environ
RENEWED = pytest.StashKey[dict[str, list[list[str]]]]()


@pytest.fixture
def said(request: pytest.FixtureRequest) -> Iterator[Said]:
    """Compare a text with the golden file: `said(error)`, once or several times in a test."""
    key = request.node.nodeid.removeprefix("tests/unit/")
    golden: dict[str, list[list[str]]] = json.loads(SENTENCES.read_text(encoding="utf-8"))
    seen: list[list[str]] = []

    def compare(text: object) -> None:
        seen.append(str(text).splitlines())
        if not RENEW:
            assert seen == golden.get(key, [])[: len(seen)], "FTCLUSTER_RENEW_SENTENCES=1 renews"

    yield compare
    if RENEW:
        request.config.stash.setdefault(RENEWED, {})[key] = seen


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Renew the sentences of the tests that ran; remove the sentences of deleted tests."""
    renewed = session.config.stash.get(RENEWED, {})
    if not renewed:
        return
    kept = json.loads(SENTENCES.read_text(encoding="utf-8"))
    names = {item.nodeid.removeprefix("tests/unit/") for item in session.items}
    files = {name.partition("::")[0] for name in names}
    # for a collected file, keep only the sentences of its present tests
    kept = {key: said for key, said in kept.items() if key.partition("::")[0] not in files}
    text = json.dumps({**kept, **renewed}, indent=1, sort_keys=True, ensure_ascii=False)
    SENTENCES.write_text(text + "\n", encoding="utf-8")
