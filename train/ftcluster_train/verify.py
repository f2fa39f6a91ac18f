"""Proves that hosts can train together: `python -m ftcluster_train.verify < request.json`.

Runs on the head. Reaches every host over SSH, starts one rank on each with the stack's own mpirun,
and compares what they say: who they are, which versions they have, which instructions their matrix
products use, and whether a sum over all of them is right. On request the same launch measures how
fast each host computes and each pair of hosts communicates. A host that cannot take part is named,
and the others go on without it. Prints one JSON document; exits with 1 if it has problems.
"""

import json
import secrets
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ftcluster_common.finding import Finding
from ftcluster_common.launch import MPI_VARIABLES, RUN_VARIABLE, Host, mesh_variables
from ftcluster_train.distributed.connectivity import receive_calls
from ftcluster_train.errors import TrainError
from ftcluster_train.launcher.processes import end_group, kill_rest
from ftcluster_train.launcher.rank_environment import (
    free_port,
    rank_environment,
    without_credentials,
)
from ftcluster_train.launcher.ssh_check import refusals
from ftcluster_train.probe import ERRAND, LIMIT_SECONDS, MARK, RUN_PREFIX, Errand, read_answers
from ftcluster_train.verification.consistency import (
    PORTS,
    SETUP,
    at_work,
    compare,
    links,
    rows,
    strangers,
)
from ftcluster_train.verification.outliers import slow_links, stragglers

LAST_LINES = 12


@dataclass(frozen=True)
class Request:
    """What to prove.

    Attributes:
        hosts: all hosts, the head first.
        ssh_config: the mesh's SSH configuration, or "" for one host.
        interface: the head's network interface with its address, or "".
        measure: whether to measure speeds as well.
        cores: physical cores of hosts by name, as far as they are known.
        ports: those of hosts by name that the control node calls meanwhile.
        firewall: whether a host that lets it in cannot take part.
    """

    hosts: tuple[Host, ...]
    ssh_config: str
    interface: str
    measure: bool = False
    cores: dict[str, int] = field(default_factory=dict)
    ports: dict[str, list[int]] = field(default_factory=dict)
    firewall: bool = False

    @classmethod
    def read(cls, text: str) -> "Request":
        """From JSON."""
        data = json.loads(text)
        hosts = tuple(Host(**host) for host in data["hosts"])
        return cls(
            hosts=hosts,
            ssh_config=data["ssh_config"],
            interface=data["interface"],
            measure=data.get("measure", False),
            cores=data.get("cores", {}),
            ports=data.get("ports", {}),
            firewall=data.get("firewall", False),
        )


@dataclass
class Report:
    """What was found.

    Attributes:
        hosts: one row a host that answered: name, address, hostname, python, versions, kernel,
            speed (None where it was not measured), interface, interface_mbits, calls (what came in
            at the ports that were open for the control node, as `calls.Calls`).
        problems: none means that the hosts can train together.
        warnings: what makes them slower than they could be.
        packages: number of packages that are the same on every host.
        all_reduce_ms: median time of an all-reduce of 4 MiB over all hosts, None for one host.
        links: one row a pair that was measured: hosts, latency_us, mb_per_second.
    """

    hosts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    packages: int = 0
    all_reduce_ms: float | None = None
    links: list[dict[str, Any]] = field(default_factory=list)


def verify(request: Request) -> Report:
    """Prove it with all hosts that can take part."""
    report = Report()
    if request.ssh_config:
        report.problems = unfit_hosts(request)
        out = {problem.host for problem in report.problems}
        there = tuple(host for host in request.hosts if host.name not in out)
        request = replace(request, hosts=there)
    answers, problems = launch(request)
    let_in = strangers(request.hosts, answers)
    report.problems += problems + compare(request.hosts, answers)
    report.problems += let_in if request.firewall else []
    report.hosts = rows(request.hosts, answers)
    report.links = links(request.hosts, answers)
    mbits = {row["name"]: row["interface_mbits"] for row in report.hosts}
    report.warnings = [
        *([] if request.firewall else let_in),
        *(at_work(request.hosts, answers) if request.measure else []),
        *stragglers(report.hosts),
        *slow_links(report.links, mbits),
    ]
    if answers and not report.problems:
        report.packages = len(answers[0]["packages"])
    report.all_reduce_ms = next((answer.get("all_reduce_ms") for answer in answers), None)
    return report


def unfit_hosts(request: Request) -> list[Finding]:
    """Hosts that cannot take part: the head does not reach them, or they do not reach the head.

    mpirun and the ranks call the head back at ports of its own. Where a firewall drops those calls
    they all wait, so each host calls once before.
    """
    head, *others = request.hosts
    with receive_calls(head.address, free_port(), len(others)) as (address, port):
        module = "ftcluster_train.distributed.connectivity"
        call = [sys.executable, "-B", "-m", module, address, str(port)]
        refused = refusals(others, request.ssh_config, shlex.join(call))
    return [
        Finding(
            refusal.host.name,
            f"at {refusal.host.address}: {refusal.reason}",
            "see that it is on and that the head reaches it; ftcluster setup makes the mesh anew"
            if refusal.by_ssh
            else f"have it reach the head by TCP, ports {PORTS}; where it has no stack, {SETUP}",
            "ssh" if refusal.by_ssh else "network",
        )
        for refusal in refused
    ]


def launch(request: Request) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Start one rank a host; returns what each said, in the hosts' order, and problems."""
    bin_dir = Path(sys.executable).parent
    run = RUN_PREFIX + secrets.token_hex(4)
    errand = Errand(
        addresses=tuple(host.address for host in request.hosts),
        cores=tuple(request.cores.get(host.name, 0) for host in request.hosts),
        measure=request.measure,
        ports=tuple(tuple(request.ports.get(host.name, ())) for host in request.hosts),
    )
    with tempfile.TemporaryDirectory(prefix="ftcluster-") as scratch:
        machinefile = Path(scratch) / "machinefile"
        machinefile.write_text("".join(f"{host.address}:1\n" for host in request.hosts))
        argv = [
            str(bin_dir / "mpirun"), "-machinefile", str(machinefile),
            "-n", str(len(request.hosts)),
            sys.executable, "-m", "ftcluster_train.probe",
        ]  # fmt: skip
        environment = rank_environment(
            {
                RUN_VARIABLE: run,
                ERRAND: errand.write(),
                "MASTER_ADDR": request.hosts[0].address,
                "OMP_NUM_THREADS": "1",
                **MPI_VARIABLES,
                "PYTHONPYCACHEPREFIX": sys.pycache_prefix or "",
                "PYTHONDONTWRITEBYTECODE": "1" if sys.dont_write_bytecode else "",
                **mesh_variables(request.ssh_config, request.interface),
            },
            str(bin_dir.parent),
        )
        process = subprocess.Popen(
            without_credentials(argv, environment, {}), env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
            late = False
        except subprocess.TimeoutExpired:
            end_group(process)
            output, late = process.communicate()[0], True
        finally:
            kill_rest(run)
    lines = output.decode(errors="replace").splitlines()
    answers = read_answers(lines)
    silent = set(range(len(request.hosts))) - {answer["rank"] for answer in answers}
    when = f"within {LIMIT_SECONDS} s" if late else "before mpirun ended"
    said = [line for line in lines if line.strip() and MARK not in line][-LAST_LINES:]
    words = "\n".join([f"its rank gave no answer {when}; mpirun said:", *said])
    names = [request.hosts[rank].name for rank in sorted(silent)]
    # mpirun's words once, for the first of them
    return answers, [
        Finding(
            name, words if name == names[0] else f"its rank gave no answer {when}", "", "launch"
        )
        for name in names
    ]


def main() -> int:
    """Entry point; returns the exit code."""
    request = Request.read(sys.stdin.read())
    try:
        report = verify(request)
    except TrainError as error:  # this host, the head, has no port left
        finding = Finding(request.hosts[0].name, error.message, error.hint, "network")
        report = Report(problems=[finding])
    print(json.dumps(asdict(report)))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
