"""The head accepts or refuses a run, and chooses its stack."""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.modules import run_folder
from ansible_collections.ftcluster.cluster.plugins.modules.run_folder import refusal


class Ended(Exception):
    """The module's response."""


class Module:
    """Ansible's end of the module."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params

    def exit_json(self, **answer: Any) -> None:
        raise Ended(answer)

    def fail_json(self, **answer: Any) -> None:
        raise Ended({"failed": True, **answer})


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A head with a stack whose lease another run has."""
    python = tmp_path / "stacks/native-1/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho run other is using it >&2; exit 3\n")
    python.chmod(0o755)
    (tmp_path / "current").symlink_to("stacks/native-1")
    return tmp_path


def launch(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, alone: bool = False, link: str = "current"
) -> dict[str, Any]:
    params = {"path": str(prefix / "runs/a-1"), "stack": str(prefix / link),
              "version": "0.2.0", "alone": alone, "mode": "0750",
              "texts": {"job.json": "{}\n"}}  # fmt: skip
    monkeypatch.setattr(run_folder, "AnsibleModule", lambda **_: Module(params))
    with pytest.raises(Ended) as ended:
        run_folder.main()
    answer: dict[str, Any] = ended.value.args[0]
    return answer


def test_a_launch_takes_the_stack_in_use_and_not_the_folder_of_another_run(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch(prefix, monkeypatch, alone=True)["refused"] == "run other is using it"
    assert not (prefix / "runs").exists()
    none = launch(prefix, monkeypatch, link="missing")
    assert none["msg"] == f"{prefix}/missing leads to no stack: run ftcluster setup"
    taken = launch(prefix, monkeypatch)
    assert taken == {"changed": True, "stack": f"{prefix}/stacks/native-1", "refused": ""}
    assert (prefix / "runs/a-1").stat().st_mode & 0o777 == 0o750
    job = prefix / "runs/a-1/job.json"
    assert (job.read_text(), job.stat().st_mode & 0o777) == ("{}\n", 0o600)
    again = launch(prefix, monkeypatch)
    assert again["failed"]
    assert "File exists" in again["msg"]


@pytest.mark.parametrize(("version", "refused"), [("0.1.0", True), ("0.2.0", False)])
def test_the_versions_have_to_be_the_same(prefix: Path, version: str, refused: bool) -> None:
    stack = prefix / "stacks/native-1"
    (stack / f"lib/python3.11/site-packages/ftcluster_train-{version}.dist-info").mkdir(
        parents=True
    )
    why = refusal(stack, prefix / "runs", "0.2.0", alone=False)
    assert why.startswith("the hosts have ftcluster 0.1.0, and this") == refused
    assert bool(why) == refused
