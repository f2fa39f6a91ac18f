"""The head accepts or refuses a run, and selects its stack."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.modules import run_folder
from ansible_collections.ftcluster.cluster.plugins.modules.run_folder import format_refusal

from ftcluster_common.protocol.formats import RUN_FORMAT
from tests.programs import ROOT

JOB = '{"format": 1, "run": "a-1"}\n'


class Ended(Exception):
    """The module's response."""


class Module:
    """A stand-in for AnsibleModule."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params

    def exit_json(self, **answer: Any) -> None:
        raise Ended(answer)

    def fail_json(self, **answer: Any) -> None:
        raise Ended({"failed": True, **answer})


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Make a head with a stack whose lease another run holds."""
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
              "version": "0.2.0", "format": 1, "later_fields": [], "alone": alone, "mode": "0750",
              "texts": {"job.json": JOB, "guard": "x\n"}}  # fmt: skip
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
    assert none["msg"] == f"{prefix}/missing does not lead to a stack: run ftcluster setup"
    taken = launch(prefix, monkeypatch)
    stack = f"{prefix}/stacks/native-1"
    assert taken == {"changed": True, "stack": stack, "format": 0, "refused": ""}
    assert (prefix / "runs/a-1").stat().st_mode & 0o777 == 0o750
    job = prefix / "runs/a-1/job.json"
    # the stack has no package that knows formats
    assert (json.loads(job.read_text()), job.stat().st_mode & 0o777) == ({"run": "a-1"}, 0o600)
    assert (prefix / "runs/a-1/guard").read_text() == "x\n"
    again = launch(prefix, monkeypatch)
    assert again["failed"]
    assert "File exists" in again["msg"]


def installed(stack: Path, version: str, run_format: int) -> None:
    packages = stack / "lib/python3.11/site-packages"
    (packages / f"ftcluster_train-{version}.dist-info").mkdir(parents=True)
    if run_format >= 0:
        (packages / "ftcluster_train/host").mkdir(parents=True)
        (packages / "ftcluster_train/host/supervisor.py").touch()
    if run_format > 0:
        folder = packages / "ftcluster_common/protocol"
        folder.mkdir(parents=True)
        text = (ROOT / "common/ftcluster_common/protocol/formats.py").read_text()
        number = f"RUN_FORMAT = {RUN_FORMAT}"
        assert text.count(f"\n{number}") == 1
        (folder / "formats.py").write_text(text.replace(number, f"RUN_FORMAT = {run_format}"))


@pytest.mark.parametrize(
    ("version", "hosts", "sent", "fields", "reason"),
    [
        ("0.1.0", 0, 1, [], ""),  # the format number is not written for these hosts
        ("0.1.0", -1, 1, [], "the hosts have ftcluster 0.1.0, which cannot read a run from"),
        ("0.1.0", 0, 1, ["task_file"], "cannot read a run with task_file from ftcluster"),
        ("0.1.0", 1, 2, [], "the hosts have ftcluster 0.1.0, which cannot read a run from"),
        ("0.1.0", 1, 1, ["task_file"], ""),
        ("0.3.0", 2, 1, [], ""),  # a newer package reads older documents
        ("0.2.0", 0, 1, ["task_file"], ""),  # the same build
    ],
)
def test_hosts_take_the_runs_whose_documents_they_read(
    prefix: Path, version: str, hosts: int, sent: int, fields: list[str], reason: str
) -> None:
    stack = prefix / "stacks/native-1"
    installed(stack, version, hosts)
    refused = format_refusal(stack, "0.2.0", sent, fields)
    assert (reason in refused, bool(refused)) == (True, bool(reason))


def test_hosts_that_know_formats_get_the_number(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(prefix / "stacks/native-1", "0.1.0.dev7+g1234", 1)
    assert launch(prefix, monkeypatch)["format"] == 1
    assert (prefix / "runs/a-1/job.json").read_text() == JOB
