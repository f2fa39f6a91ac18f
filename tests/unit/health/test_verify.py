import io
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.finding import Finding
from ftcluster_common.protocol.launch import Host
from ftcluster_train.health import probe, verify
from ftcluster_train.health.probe import ProbeRequest
from ftcluster_train.health.verify import launch, unreachable_hosts
from ftcluster_train.supervisor import rank_environment
from ftcluster_train.supervisor.ssh_causes import DENIED, NO_ROUTE
from ftcluster_train.supervisor.ssh_check import HostFailure
from tests.programs import NODE_PATH

HOSTS = (Host("node1", "127.0.0.1"), Host("node2", "10.0.0.2"), Host("node3", "10.0.0.3"))
REQUEST = ProbeRequest(hosts=HOSTS, ssh_config="/opt/ftcluster/mesh/ssh_config", interface="eth0")
# stands in for mpirun as launch() calls it: rank 1 prints nothing
MPIRUN = """\
#!/bin/sh
env > "$(dirname "$0")/environment"
echo "$@" > "$(dirname "$0")/arguments"
echo 'FTCLUSTER-VERIFY 0 0 1 {"rank": 0, "error": ""}'
echo 'FTCLUSTER-VERIFY 2 0 1 {"rank": 2, "error": ""}'
echo 'rank 1 was ended by signal 9'
"""


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with an mpirun that represents the stack's mpirun."""
    (tmp_path / "mpirun").write_text(MPIRUN)
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(verify, "LIMIT_SECONDS", 20)
    return tmp_path


def test_the_module_needs_no_torch() -> None:
    program = "import sys, ftcluster_train.health.verify; sys.exit('torch' in sys.modules)"
    argv = [sys.executable, "-c", program]
    assert subprocess.run(argv, env={"PYTHONPATH": NODE_PATH}, check=False).returncode == 0


def test_a_request_comes_as_json() -> None:
    text: dict[str, Any] = {
        "hosts": [{"name": host.name, "address": host.address} for host in HOSTS],
        "ssh_config": REQUEST.ssh_config, "interface": "eth0",
    }  # fmt: skip
    assert ProbeRequest.read(json.dumps(text)) == REQUEST
    firewalls = {"node2": {"program": "ufw", "ports": ["29500-29999"]}}
    more = ProbeRequest.read(
        json.dumps({**text, "measure": True, "cores": {"node1": 32}, "firewalls": firewalls})
    )
    assert (more.measure, more.cores) == (True, {"node1": 32})
    assert more.firewalls["node2"].ports == ("29500-29999",)
    assert ProbeRequest.read(json.dumps(asdict(more))) == more


def test_a_rank_that_says_nothing_is_named_with_mpiruns_words(bin_dir: Path) -> None:
    answers, problems = launch(REQUEST)
    assert [answer["rank"] for answer in answers] == [0, 2]
    assert problems == [
        Finding(
            "node2",
            "its rank gave no answer before mpirun ended; mpirun printed:\n"
            "rank 1 was ended by signal 9",
            "",
            "launch",
        )
    ]
    arguments = (bin_dir / "arguments").read_text().split()
    assert arguments[2:] == ["-n", "3", f"{bin_dir}/python", "-m", "ftcluster_train.health.probe"]


@pytest.mark.usefixtures("bin_dir")
def test_ranks_that_fail_with_rdma_may_work_with_tcp() -> None:
    facts = {"network_interface": "eth0", "network_provider": "verbs", "rank_user": ""}
    networks = {host.name: facts for host in HOSTS}
    _, [problem] = launch(replace(REQUEST, networks=networks))
    assert problem.hint.startswith("if MPI fails with verbs;ofi_rxm, set ftcluster_network_prov")


def test_each_verify_is_a_run_of_its_own(bin_dir: Path) -> None:
    """Otherwise the end of one verify would end the ranks of another."""

    def run() -> str:
        launch(REQUEST)
        lines = (bin_dir / "environment").read_text().splitlines()
        return next(line for line in lines if line.startswith("FTCLUSTER_RUN="))

    first, second = run(), run()
    assert first != second
    assert first.startswith("FTCLUSTER_RUN=verify-")


def test_ranks_write_no_compiled_files_where_verify_does_not(
    bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, line in ((True, "PYTHONDONTWRITEBYTECODE=1"), (False, "PYTHONDONTWRITEBYTECODE=")):
        monkeypatch.setattr(sys, "dont_write_bytecode", value)
        launch(REQUEST)
        assert line in (bin_dir / "environment").read_text().splitlines()


def test_hosts_that_cannot_take_part_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def refuse(hosts: list[Host], ssh_config: str, command: str) -> list[HostFailure]:
        called.append((hosts, ssh_config, command))
        return [
            HostFailure(HOSTS[1], "ssh from the head fails: No route to host", NO_ROUTE),
            HostFailure(HOSTS[2], "no TCP connection to the head at 127.0.0.1"),
            HostFailure(
                HOSTS[2], "ssh from the head fails: a@b: Permission denied (publickey).", DENIED
            ),
        ]

    monkeypatch.setattr(verify, "refusals", refuse)
    first, second, third = unreachable_hosts(REQUEST)
    assert (first.host, first.kind) == ("node2", "ssh")
    assert first.what == "at 10.0.0.2: ssh from the head fails: No route to host"
    assert (second.host, second.kind) == ("node3", "network")
    assert "29500-29999" in second.hint
    assert first.hint.startswith("check that it is on")
    assert "AllowGroups" in third.hint
    ((hosts, ssh_config, command),) = called
    assert (hosts, ssh_config) == ([*HOSTS[1:]], REQUEST.ssh_config)
    assert command.startswith(
        f"cd / && {sys.executable} -B -m ftcluster_train.comm.connectivity 127.0.0.1 295"
    )


def test_the_others_go_on_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Finding("node2", "at 10.0.0.2: off", "", "ssh")
    asked = []

    def answers(request: ProbeRequest) -> tuple[list[dict[str, Any]], list[Finding]]:
        asked.append(request)
        return [{"rank": rank, "error": "", "packages": {"torch": "2"}} for rank in (0, 1)], []

    monkeypatch.setattr(verify, "unreachable_hosts", lambda _: [lost])
    monkeypatch.setattr(verify, "launch", answers)
    report = verify.verify(REQUEST)
    assert [host.name for host in asked[0].hosts] == ["node1", "node3"]
    assert [row["name"] for row in report.hosts] == ["node1", "node3"]
    assert report.problems == [lost]
    assert report.packages == 0


def test_one_host_is_not_asked_over_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "unreachable_hosts", lambda _: pytest.fail("nobody to ask"))
    answer = {"rank": 0, "error": "", "packages": {"torch": "2"}, "all_reduce_ms": None}
    monkeypatch.setattr(verify, "launch", lambda _: ([answer], []))
    report = verify.verify(ProbeRequest(HOSTS[:1], "", ""))
    assert (report.problems, report.packages, report.all_reduce_ms) == ([], 1, None)


def test_the_document_and_the_exit_code(tmp_path: Path) -> None:
    """Run the whole program with an mpirun that fails."""
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho no such host\nexit 1\n")
    (tmp_path / "mpirun").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    request = {"hosts": [{"name": "a", "address": "127.0.0.1"}], "ssh_config": "", "interface": ""}
    done = subprocess.run(
        [tmp_path / "python", "-m", "ftcluster_train.health.verify"],
        input=json.dumps(request), env=os.environ | {"PYTHONPATH": NODE_PATH},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["hosts"] == document["links"] == document["warnings"] == []
    (problem,) = document["problems"]
    assert problem["host"] == "a"
    assert problem["kind"] == "launch"
    assert problem["what"].endswith("mpirun printed:\nno such host")


def test_a_head_without_a_free_port_is_a_problem_of_the_head(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {"hosts": [{"name": "node1", "address": "127.0.0.1"}], "ssh_config": "",
               "interface": ""}  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(rank_environment, "RENDEZVOUS_PORTS", range(port, port + 1))
        assert verify.main() == 1
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["host"], problem["kind"]) == ("node1", "network")
    assert f"no TCP port from {port} to {port} is free" in problem["what"]
    assert "ss -ltnp" in problem["hint"]


@pytest.mark.parametrize("measure", [False, True])
def test_a_run_that_disturbs_is_named_where_something_is_measured(
    measure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "other_runs", lambda: ["mrpc-1"])
    answer = {"rank": 0, "error": "", **probe.describe_host("127.0.0.1"), "packages": {}}
    monkeypatch.setattr(verify, "launch", lambda _: ([answer], []))
    report = verify.verify(ProbeRequest(HOSTS[:1], "", "", measure=measure))
    assert [(one.kind, one.host) for one in report.warnings] == [("busy", "node1")] * measure
    assert all("mrpc-1" in one.what for one in report.warnings)


@pytest.mark.parametrize("required", [False, True])
def test_a_host_that_lets_others_in_is_a_problem_where_the_firewall_is_required(
    required: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"seconds": 3.0, "came": {"29900": ["198.51.100.7"]}}
    answer = {"rank": 0, "error": "", "packages": {}, "calls": calls}
    monkeypatch.setattr(verify, "launch", lambda _: ([answer], []))
    report = verify.verify(ProbeRequest(HOSTS[:1], "", "", firewall=required))
    found, others = report.problems, report.warnings
    if not required:
        found, others = others, found
    assert [finding.kind for finding in found] == ["firewall"]
    assert others == []
