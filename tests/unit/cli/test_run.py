"""The command `run` up to the launch, and its handling of a run's end."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.ansible.playbooks import Ask
from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import FtclusterError
from ftcluster.launch import ask, run_hosts
from ftcluster.launch.run_hosts import RunHosts
from ftcluster_common.protocol.launch import label_pattern, unpack_env
from tests.unit.clusters import VM, cluster, host
from tests.unit.shell import Said, Shell
from tests.unit.wheels import write_wheel


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Yield the current folder, with a valid script."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")
    monkeypatch.chdir(folder)
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=cluster(VM)))
    return folder


def planned(shell: Shell, *words: str) -> Any:
    return shell(["run", "--dry-run", "--json", *words]).document


def program(document: dict[str, Any]) -> list[str]:
    """Return the program of each rank, from its folder on."""
    script = document["script"]
    return [script["start"], *script["program"]]


@pytest.mark.parametrize(
    "words",
    [
        ["--ranks-per-host", "2", "--", "train.py", "--nodes", "3", "--json", "--", "-h"],
        ["--ranks-per-host", "2", "train.py", "--nodes", "3", "--json", "--", "-h"],
    ],
)
def test_options_after_the_script_are_its_own(shell: Shell, words: list[str]) -> None:
    document = planned(shell, *words)
    assert document["world_size"] == 2
    folder, *rest = program(document)
    assert folder == f"/opt/ftcluster/runs/{document['run']}/script"
    assert rest == ["train.py", "--nodes", "3", "--json", "--", "-h"]


def test_what_every_rank_gets(shell: Shell, project: Path) -> None:
    document = planned(shell, "--", "train.py")
    run, launch = document["run"], document["launch"]
    assert run.startswith("train-")
    assert launch["env"]["ACCELERATE_USE_CPU"] == "true"
    assert launch["env"]["FTCLUSTER_BACKEND"] == "gloo"
    assert launch["env"]["FTCLUSTER_PRECISION"] == "bf16"
    assert "HF_HUB_OFFLINE" not in launch["env"]
    assert label_pattern(run) in launch["argv"]  # the supervisor parses this output
    assert document["script"]["folder"] == str(project)
    assert document["script"]["files"] == ["train.py"]
    assert document["script"]["copied_to"].startswith("/opt/ftcluster/scripts/project-")


def test_arguments_of_the_script_are_not_in_those_of_mpirun(shell: Shell) -> None:
    document = planned(shell, "--", "train.py", "--key", "s3cret", ":")
    assert program(document)[1:] == ["train.py", "--key", "s3cret", ":"]
    assert "s3cret" not in json.dumps(document["launch"])
    run_dir = f"/opt/ftcluster/runs/{document['run']}"
    assert document["launch"]["argv"][-3:] == ["ftcluster_train.host.script", "run", run_dir]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the variables of each playbook that asks the hosts; their stack has only torch."""
    variables = []

    def play(playbook: Ask, run_hosts: RunHosts, *_: Any, **__: Any) -> Any:
        given = playbook.variables()
        variables.append(given)
        if "no_such" in given["run_script"]["look"]:
            raise FtclusterError("localhost: module no_such does not exist")
        packages = [{"name": "torch", "version": "2.13.0", "extras": []}]
        document = {"stack": "native-1", "python": "3.11", "glibc": "2.36", "machine": "x86_64"}
        if given["ask_stack"]:
            return {run_hosts.head: {**document, "packages": packages}}
        return {run_hosts.head: True} if "json.tool" in given["run_script"]["look"] else {}

    monkeypatch.setattr(ask, "play", play)
    return variables


def test_a_dry_run_asks_the_hosts_for_what_only_they_have(
    shell: Shell, asked: list[dict[str, Any]]
) -> None:
    assert "module no_such does not exist" in shell("run --dry-run -- -m no_such", 1).err
    document = planned(shell, "--", "-m", "perhaps.it")
    assert document["notes"] == ["no response from localhost, so perhaps.it may be missing there"]
    assert [one["run_script"]["look"] for one in asked] == [["-m", "no_such"], ["-m", "perhaps.it"]]
    assert planned(shell, "--", "-m", "json.tool")["notes"] == []


def test_packages_of_its_own(
    shell: Shell, asked: list[dict[str, Any]], hosts: "Hosts",
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_wheel(tmp_path / "wheels", "tool", "1.0", "torch")
    (tmp_path / "own.txt").write_text("tool\n")
    words = ("--requirements", str(tmp_path / "own.txt"), "--wheels", str(tmp_path / "wheels"))
    document = planned(shell, *words, "--", "-m", "tool.inner")
    layer = document["layer"]
    assert layer["packages"] == {"tool": "1.0"}
    folder = f"/opt/ftcluster/layers/{layer['name']}"
    assert document["launch"]["env"]["FTCLUSTER_LAYER"] == folder
    assert len(asked) == 1  # the module is in the script's own packages
    out = shell(["run", "--dry-run", "--commands", *words, "--", "train.py"]).out
    assert f"# packages in {folder} on the hosts: tool 1.0\n" in out
    hosts.events = [{"event": "end", "state": "done", "exit_code": 0, "seconds": 1.0}]
    assert main(["run", *words, "--", "train.py"]) == 0
    assert hosts.variables["run_layer"]["path"] == folder
    assert Path(hosts.variables["run_layer"]["lock"]).read_text().startswith("tool==1.0 --hash=")
    [path] = (tmp_path / "state/ftcluster/runs").glob("*/run.json")
    assert json.loads(path.read_text())["layer"] == layer


@pytest.mark.parametrize("words", [["--wheels", "."], ["--requirements", "none.txt"],
                                   ["--requirements", "train.py", "--wheels", "none"]])  # fmt: skip
def test_requirements_that_cannot_be(words: list[str], shell: Shell, said: Said) -> None:
    said(shell(["run", "--dry-run", *words, "--", "train.py"], 2).err)


def test_a_module_and_a_path_of_the_hosts(
    shell: Shell,
    asked: list[dict[str, Any]],  # noqa: ARG001
) -> None:
    document = planned(shell, "--", "-m", "trl.scripts.sft", "--lr", "1")
    assert program(document)[1:] == ["-m", "trl.scripts.sft", "--lr", "1"]
    assert document["script"]["folder"] is None
    document = planned(shell, "--on-hosts", "--", "/shared/glue.py", "x")
    assert program(document) == ["/shared", "/shared/glue.py", "x"]


def test_our_kernels(shell: Shell) -> None:
    assert "FTCLUSTER_FAST" not in planned(shell, "--", "train.py")["launch"]["env"]
    assert planned(shell, "--fast", "--", "train.py")["launch"]["env"]["FTCLUSTER_FAST"] == "1"
    assert "--fast: dropout, attention" in shell("run --dry-run --fast -- train.py").out


def test_our_kernels_with_an_old_torch(shell: Shell, said: Said) -> None:
    old = cluster(replace(VM, stack="intel-2.4"))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=old))
    said(shell("run --dry-run --fast -- train.py", 2).err)


def test_a_dry_run_as_text(shell: Shell, project: Path) -> None:
    (project / ".git").mkdir()
    out = shell(["run", "--dry-run", "--", "train.py", "a b"]).out
    assert "mpirun" not in out
    assert f"copied to the hosts: {project} (1 files, 0.0 MB, without .git)" in out
    assert "\nranks on localhost: " in out
    out = shell(["run", "--dry-run", "--commands", "--", "train.py", "a b"]).out
    assert f"# copied to the hosts: {project} (1 files, 0.0 MB, without .git)" in out
    assert '"program": ["train.py", "a b"]' in out
    assert "/opt/ftcluster/current/bin/mpirun" in out
    assert "# ranks on localhost: " in out


def test_a_script_that_would_fail_is_not_started(shell: Shell, project: Path, said: Said) -> None:
    (project / "old.py").write_text("from transformers import HfArgumentParser\nimport torch_ccl\n")
    said(shell("run -- old.py --no_cuda", 2).err)
    assert len(planned(shell, "--force", "--", "old.py")["notes"]) == 1
    (project / "start.sh").write_text("#!/bin/sh\necho hello\n")
    said(shell("run -- start.sh", 2).err)


def test_notes_do_not_prevent_the_run(shell: Shell, tmp_path: Path) -> None:
    remember(Cluster((Path("/i.ini"),), cluster(host("node1"), host("node2"))))
    (tmp_path / "model").mkdir()
    [note] = planned(shell, "--", "train.py", str(tmp_path / "model"))["notes"]
    assert str(tmp_path / "model") in note


class Hosts:
    """A stand-in for Ansible and hosts that writes a run's events where the playbook would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[dict[str, Any]] = []
        self.variables: dict[str, Any] = {}
        self.state = "done"
        self.playbooks: list[str] = []
        monkeypatch.setattr(run_hosts, "run_playbook", self.run)

    def run(self, playbook: str, _inventory: Path, variables: dict[str, Any], *_: Any,
            cancelled: Any, on_tick: Any, **__: Any) -> PlaybookOutcome:  # fmt: skip
        self.playbooks.append(playbook.rpartition(".")[2])
        self.variables = variables
        if playbook.endswith(".stop"):
            return PlaybookOutcome("done", "")
        path = Path(variables["train_events"])
        path.write_text("".join(json.dumps({"time": 1.0, **event}) + "\n" for event in self.events))
        on_tick()
        return PlaybookOutcome("stopped" if cancelled() else self.state, "")  # type: ignore[arg-type]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


OUTPUT = [
    {"event": "backend", "name": "gloo"},
    {"event": "output", "rank": 0, "stream": "stdout", "text": "loss 1\nlo"},
    {"event": "output", "rank": 0, "stream": "stderr", "text": "50 %\r"},
    {"event": "output", "rank": 0, "stream": "stdout", "text": "ss 0, grün\n"},
]
FAILED = [
    {"event": "error", "message": "ended with exit code 3; it last said:\nodd", "rank": 1,
     "host": "vm", "hint": "all of it"},
    {"event": "end", "state": "failed", "exit_code": 3, "seconds": 7.5},
]  # fmt: skip


def test_the_output_of_rank_0_is_shown(hosts: Hosts, shell: Shell) -> None:
    hosts.events = [*OUTPUT, {"event": "end", "state": "done", "exit_code": 0, "seconds": 7.5}]
    captured = shell("run -- train.py")
    assert captured.out == "loss 1\nloss 0, grün\n"
    assert "50 %\r" in captured.err
    assert re.match(r"done: run train-\S+ on 1 rank, backend gloo, ", captured.err.splitlines()[-1])
    assert hosts.playbooks == ["run"]
    # the result as JSON
    captured = shell("run --json -- train.py")
    result = json.loads(captured.out)
    run = result.pop("run")
    assert result == {
        "state": "done", "exit_code": 0, "world_size": 1, "backend": "gloo", "seconds": 7.5,
        "logs": f"/opt/ftcluster/runs/{run}/logs",
    }  # fmt: skip
    assert captured.err.startswith("loss 1\nlo50 %\rss 0, grün\n")  # everything except the result


def test_the_exit_code_is_the_scripts(hosts: Hosts, shell: Shell) -> None:
    hosts.events, hosts.state = FAILED, "failed"
    arguments = ["run", "--json", "--ranks-per-host", "2", "--", "train.py"]
    captured = shell(arguments, 3)
    result = json.loads(captured.out)
    assert (result["state"], result["exit_code"], result["world_size"]) == ("failed", 3, 2)
    # by the host's inventory name, not by its hostname
    assert (
        "failed: rank 1 on localhost: ended with exit code 3; it last said:\n  odd" in captured.err
    )
    # a run that could not be started
    hosts.events = [
        {"event": "error", "message": "node2 (b): no route", "rank": None, "host": "node2",
         "hint": "no rank was started"},
        {"event": "end", "state": "failed", "exit_code": 255, "seconds": 0.0},
    ]  # fmt: skip
    assert shell("run --json -- train.py", 1).document["state"] == "failed"


def test_a_closed_stdout_ends_the_run(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed:
        encoding = "utf-8"

        def write(self, _: str) -> None:
            raise BrokenPipeError

        def fileno(self) -> int:
            return 99

        def isatty(self) -> bool:
            return False

        def flush(self) -> None:
            pass

    hosts.events = OUTPUT
    monkeypatch.setattr("sys.stdout", Closed())
    monkeypatch.setattr("ftcluster.cli.main.drop_output", lambda: None)
    assert main(["run", "--", "train.py"]) == 141
    assert hosts.playbooks == ["run", "stop"]
    assert "stopping the ranks" in capsys.readouterr().err


def test_every_kind_of_run_is_recorded(hosts: Hosts, tmp_path: Path) -> None:
    hosts.events = [{"event": "end", "state": "done", "exit_code": 0, "seconds": 1.0}]
    assert main(["run", "--", "train.py", "--lr", "1"]) == 0
    [path] = (tmp_path / "state/ftcluster/runs").glob("*/run.json")
    record = json.loads(path.read_text())
    assert record["kind"] == "run"
    assert record["script"]["program"] == ["train.py", "--lr", "1"]


def test_other_users_cannot_read_a_run_on_the_control_node(hosts: Hosts, tmp_path: Path) -> None:
    hosts.events = [{"event": "end", "state": "done", "exit_code": 0, "seconds": 1.0}]
    state = tmp_path / "state/ftcluster"
    state.chmod(0o755)
    before = os.umask(0)
    try:
        assert main(["run", "--", "train.py", "s3cret"]) == 0
    finally:
        os.umask(before)
    assert state.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in state.rglob("*.json*")}
    assert modes == {"cluster.json": 0o600, "run.json": 0o600, "events.jsonl": 0o600}


def test_a_token_for_the_hub_is_sent_only_with_its_option(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    hosts.events = [{"event": "end", "state": "done", "exit_code": 0, "seconds": 1.0}]
    assert main(["run", "--", "train.py"]) == 0
    assert "hf_s3cret" not in str(hosts.variables)
    assert main(["run", "--hf-token", "--", "train.py"]) == 0
    assert hosts.variables.pop("run_hub_token") == "hf_s3cret"
    assert "hf_s3cret" not in str(hosts.variables)
    # the user's own variables are passed in the same way
    monkeypatch.setenv("OWN_KEY", "hf_s3cret")
    assert main(["run", "--env", "OWN_KEY", "--env", "OWN_MODE=x", "--", "train.py"]) == 0
    assert unpack_env(hosts.variables.pop("train_secret_env")) == {"OWN_KEY": "hf_s3cret"}
    assert hosts.variables["train_launch"]["env"]["OWN_MODE"] == "x"
    assert "hf_s3cret" not in str(hosts.variables)
    for path in (tmp_path / "state").rglob("*.json*"):
        assert "hf_s3cret" not in path.read_text()


@pytest.mark.parametrize("option", ["--timeout=3", "--timeout=x", "--hang-seconds=-1"])
def test_time_outs_that_cannot_be(option: str, shell: Shell) -> None:
    assert "is not a whole number" in shell(["run", "--dry-run", option, "--", "train.py"], 2).err
