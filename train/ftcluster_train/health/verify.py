"""A check that hosts can train together: `python -m ftcluster_train.health.verify < request.json`.

Runs on the head. Connects to every host over SSH, starts one rank on each host with the stack's
mpirun, and compares the ranks' answers: addresses, versions, the instruction set of matrix
multiplications, and a sum over all ranks. On request it also measures the compute speed of each
host and the network between each pair of hosts. A host that fails is reported, and the check
continues without it. Prints one JSON document; exits with 1 if there are problems.
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

from ftcluster_common.protocol.finding import Finding
from ftcluster_common.protocol.launch import MPI_VARIABLES, RUN_VARIABLE, mesh_variables
from ftcluster_common.protocol.network import TCP, choose_provider
from ftcluster_train.comm.connectivity import listen
from ftcluster_train.errors import TrainError
from ftcluster_train.health.consistency import (
    PORTS,
    SETUP,
    busy_hosts,
    find_problems,
    host_rows,
    link_rows,
    open_to_outsiders,
    without_impi,
)
from ftcluster_train.health.open_ports import firewall_advice
from ftcluster_train.health.outliers import (
    below_peak,
    slow_hosts,
    slow_links,
    slow_memory_and_disks,
)
from ftcluster_train.health.probe import (
    LIMIT_SECONDS,
    MARK,
    REQUEST_VARIABLE,
    RUN_PREFIX,
    ProbeRequest,
    networks_of,
    read_answers,
)
from ftcluster_train.io.processes import end_group, kill_rest
from ftcluster_train.supervisor.rank_environment import (
    free_port,
    rank_environment,
    without_credentials,
)
from ftcluster_train.supervisor.ssh_check import refusals

LAST_LINES = 12


@dataclass
class VerifyReport:
    """The result, printed as JSON.

    Attributes:
        hosts: rows of the hosts that answered: name, address, hostname, python, versions, kernel,
            speed (None if not measured), interface, interface_mbits, calls (see
            `open_ports.IncomingConnections`).
        problems: problems that prevent training on the hosts together.
        warnings: findings that slow the hosts down.
        packages: number of packages, which are the same on every host.
        all_reduce_ms: median time of an all-reduce of 4 MiB over all hosts with gloo, in ms; None
            if there is only one host.
        backends: time of an all-reduce of 4 MiB for each backend, in ms.
        large: time of an all-reduce of 25 MiB for each backend in ms, if it was measured.
        links: rows of the measured pairs: hosts, latency_us, mb_per_second.
    """

    hosts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    packages: int = 0
    all_reduce_ms: float | None = None
    backends: dict[str, float] = field(default_factory=dict)
    large: dict[str, float] = field(default_factory=dict)
    links: list[dict[str, Any]] = field(default_factory=list)


def verify(request: ProbeRequest) -> VerifyReport:
    """Check all hosts that can be reached."""
    report = VerifyReport()
    if request.ssh_config:
        report.problems = unreachable_hosts(request)
        failed = {problem.host for problem in report.problems}
        reachable = tuple(host for host in request.hosts if host.name not in failed)
        request = replace(request, hosts=reachable)
    answers, problems = launch(request)
    open_hosts = open_to_outsiders(request.hosts, answers, request.guarded)
    report.problems += problems + find_problems(request.hosts, answers, request.firewalls)
    report.problems += open_hosts if request.firewall else []
    report.hosts = host_rows(request.hosts, answers)
    report.links = link_rows(request.hosts, answers)
    mbits = {row["name"]: row["interface_mbits"] for row in report.hosts}
    report.warnings = [
        *([] if request.firewall else open_hosts),
        *(busy_hosts(request.hosts, answers) if request.measure or report.links else []),
        *slow_hosts(report.hosts),
        *below_peak(report.hosts),
        *slow_memory_and_disks(report.hosts),
        *slow_links(report.links, mbits),
        *without_impi(request.hosts, answers),
    ]
    if answers and not report.problems:
        report.packages = len(answers[0]["packages"])
    report.all_reduce_ms = next((answer.get("all_reduce_ms") for answer in answers), None)
    report.backends = next((answer.get("backends", {}) for answer in answers), {})
    report.large = next((answer.get("large", {}) for answer in answers), {})
    return report


def unreachable_hosts(request: ProbeRequest) -> list[Finding]:
    """Return hosts that the head cannot reach, or that cannot reach the head.

    mpirun and the ranks connect to ports of the head. If a firewall dropped their packets, all
    ranks would wait, so each host tries to connect first.
    """
    head, *others = request.hosts
    port = free_port()
    with listen(head.address, port, len(others)):
        module = "ftcluster_train.comm.connectivity"
        call = [sys.executable, "-B", "-m", module, head.address, str(port)]
        refused = refusals(others, request.ssh_config, f"cd / && {shlex.join(call)}")
    return [
        Finding(
            refusal.host.name,
            f"at {refusal.host.address}: {refusal.reason}",
            refusal.cause.remedy
            if refusal.cause
            else "; ".join(
                (
                    f"allow TCP connections from it to the head on ports {PORTS}",
                    *firewall_advice((head,), request.hosts, request.firewalls),
                    f"if it has no stack, {SETUP}",
                )
            ),
            "ssh" if refusal.cause else "network",
        )
        for refusal in refused
    ]


def launch(request: ProbeRequest) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Start one rank on each host; return their answers, in the hosts' order, and problems."""
    bin_dir = Path(sys.executable).parent
    run = RUN_PREFIX + secrets.token_hex(4)
    with tempfile.TemporaryDirectory(prefix="ftcluster-") as scratch:
        machinefile = Path(scratch) / "machinefile"
        machinefile.write_text("".join(f"{host.address}:1\n" for host in request.hosts))
        argv = [
            str(bin_dir / "mpirun"), "-machinefile", str(machinefile),
            "-n", str(len(request.hosts)),
            sys.executable, "-m", "ftcluster_train.health.probe",
        ]  # fmt: skip
        environment = rank_environment(
            {
                RUN_VARIABLE: run,
                REQUEST_VARIABLE: json.dumps(asdict(request)),
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
            without_credentials(argv, environment, {}), env=environment, cwd="/",
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
    silent = sorted(set(range(len(request.hosts))) - {answer["rank"] for answer in answers})
    what = (
        f"its rank gave no answer {f'within {LIMIT_SECONDS} s' if late else 'before mpirun ended'}"
    )
    printed = [line for line in lines if line.strip() and MARK not in line][-LAST_LINES:]
    provider = choose_provider(networks_of(request))
    hint = ""
    if provider != TCP:
        hint = f"if MPI fails with {provider}, set ftcluster_network_provider=tcp in the inventory"
    problems = [Finding(request.hosts[rank].name, what, hint, "launch") for rank in silent]
    if problems:  # mpirun's output belongs to all problems, so the first one shows it
        output_of_mpirun = "\n".join([f"{what}; mpirun printed:", *printed])
        problems[0] = replace(problems[0], what=output_of_mpirun)
    return answers, problems


def main() -> int:
    """Run the check; return the exit code."""
    request = ProbeRequest.read(sys.stdin.read())
    try:
        report = verify(request)
    except TrainError as error:  # this host, the head, has no free port
        finding = Finding(request.hosts[0].name, error.message, error.hint, "network")
        report = VerifyReport(problems=[finding])
    print(json.dumps(asdict(report)))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
