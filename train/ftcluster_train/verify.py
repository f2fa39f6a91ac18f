"""Proves that hosts can train together: `python -m ftcluster_train.verify < request.json`.

Runs on the head. Reaches every host over SSH, starts one rank on each with the stack's own mpirun,
and compares what they say: who they are, which versions they have, which instructions their matrix
products use, and whether a sum over all of them is right. Prints one JSON document; exits with 1 if
it has problems.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ftcluster_train.reach import Host, unreachable
from ftcluster_train.supervisor import end_group, rank_environment, sweep

LAUNCH_SECONDS = 180  # torch is imported from a cold disk the first time
MARK = "FTCLUSTER-VERIFY "
RUN = "verify"
SHOWN = ("torch", "transformers", "ftcluster-train")
# oneDNN's names for what it generates code for, the best first, and the CPU flag that promises it
PROMISES = (
    ("amx_bf16", "amx"),
    ("avx512_bf16", "avx512_core_bf16"),
    ("avx512f", "avx512_core"),
    ("avx2", "avx2"),
)
PRODUCT = 256  # rows and columns of the product whose kernel is looked at
TIMED_BYTES = 4 << 20
TIMED_TURNS = 5
LAST_LINES = 12


@dataclass(frozen=True)
class Request:
    """What to prove.

    Attributes:
        hosts: all hosts, the head first.
        ssh_config: the mesh's SSH configuration, or "" for one host.
        interface: the head's network interface with its address, or "".
    """

    hosts: tuple[Host, ...]
    ssh_config: str
    interface: str

    @classmethod
    def read(cls, text: str) -> "Request":
        """From JSON."""
        data = json.loads(text)
        hosts = tuple(Host(**host) for host in data["hosts"])
        return cls(hosts=hosts, ssh_config=data["ssh_config"], interface=data["interface"])


@dataclass
class Report:
    """What was found.

    Attributes:
        hosts: one row a host: name, address, hostname, python, versions, kernel, seconds.
        problems: sentences; none means that the hosts can train together.
        packages: number of packages that are the same on every host.
        all_reduce_ms: median time of an all-reduce of 4 MiB over all hosts, None for one host.
    """

    hosts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    packages: int = 0
    all_reduce_ms: float | None = None


def verify(request: Request) -> Report:
    """Prove it, step by step, and stop at the first step with problems."""
    report = Report()
    others = request.hosts[1:] if request.ssh_config else ()
    report.problems = unreachable(others, request.ssh_config)
    if not report.problems:
        answers, report.problems = launch(request)
        report.problems += compare(request, answers)
        report.hosts = rows(request, answers)
        if not report.problems:
            report.packages = len(answers[0]["packages"])
            report.all_reduce_ms = answers[0]["all_reduce_ms"]
    return report


def launch(request: Request) -> tuple[list[dict[str, Any]], list[str]]:
    """Start one rank a host; returns what each said, in the hosts' order, and problems."""
    bin_dir = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(prefix="ftcluster-") as scratch:
        machinefile = Path(scratch) / "machinefile"
        machinefile.write_text("".join(f"{host.address}:1\n" for host in request.hosts))
        argv = [
            str(bin_dir / "mpirun"), "-machinefile", str(machinefile),
            "-n", str(len(request.hosts)),
            sys.executable, "-m", "ftcluster_train.verify", "rank",
        ]  # fmt: skip
        environment = rank_environment(
            {
                "FTCLUSTER_RUN": RUN,
                "MASTER_ADDR": request.hosts[0].address,
                "OMP_NUM_THREADS": "1",
                "PYTHONPYCACHEPREFIX": sys.pycache_prefix or "",
                "FTCLUSTER_ADDRESSES": ",".join(host.address for host in request.hosts),
                **mesh_environment(request.ssh_config, request.interface),
            },
            bin_dir,
        )
        process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LAUNCH_SECONDS)
            late = False
        except subprocess.TimeoutExpired:
            end_group(process)
            output, late = process.communicate()[0], True
        finally:
            sweep(RUN)
    answers = sorted(read_answers(output), key=lambda answer: int(answer["rank"]))
    problems = []
    silent = set(range(len(request.hosts))) - {answer["rank"] for answer in answers}
    if silent:
        names = ", ".join(request.hosts[rank].name for rank in sorted(silent))
        when = f"within {LAUNCH_SECONDS} s" if late else "before mpirun ended"
        said = [line for line in output.splitlines() if line.strip() and MARK not in line]
        first = f"no answer from the ranks on {names} {when}; mpirun said:"
        problems = ["\n".join([first, *said[-LAST_LINES:]])]
    return answers, problems


def mesh_environment(ssh_config: str, interface: str) -> dict[str, str]:
    """Variables that make Hydra use the mesh's SSH (Intel MPI's manual, Hydra variables)."""
    if not ssh_config:
        return {}
    variables = {
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {ssh_config}",
        # the head starts every host itself: no other host has the key
        "I_MPI_HYDRA_BRANCH_COUNT": "4096",
        "I_MPI_PORT_RANGE": "29600:29799",  # within what the firewall opens
    }
    # else Hydra tells the hosts to call back at the head's name, which they may not know
    return {**variables, **({"I_MPI_HYDRA_IFACE": interface} if interface else {})}


def read_answers(output: str) -> Iterator[dict[str, Any]]:
    """The documents that ranks have printed among other lines."""
    for line in output.splitlines():
        _, mark, text = line.partition(MARK)
        if mark:
            with contextlib.suppress(ValueError):
                yield json.loads(text)


def compare(request: Request, answers: Sequence[dict[str, Any]]) -> list[str]:
    """What is not as it must be, as sentences that name hosts."""
    problems = []
    for answer in answers:
        host = request.hosts[answer["rank"]]
        if not answer["has_address"]:
            problems.append(
                f"{host.name}: {host.address} was answered by {answer['hostname']}, "
                "which does not have this address"
            )
        if not answer["sum_right"]:
            problems.append(f"{host.name}: an all-reduce over all hosts gave a wrong sum")
        promised = promise(answer["flags"])
        if promised and promised not in answer["kernel"]:
            problems.append(
                f"{host.name}: its CPU promises {promised}, but oneDNN computed with "
                f"{answer['kernel'] or 'no kernel of its own'}; see ONEDNN_MAX_CPU_ISA on the host"
            )
    for answer in answers[1:]:
        problems += differences(request, answers[0], answer)
    return problems


def differences(request: Request, first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Versions on one host that are not those of the first."""
    one, another = request.hosts[first["rank"]].name, request.hosts[other["rank"]].name
    found = [
        f"{name} {other['packages'].get(name, 'missing')} instead of "
        f"{first['packages'].get(name, 'none')}"
        for name in sorted(first["packages"].keys() | other["packages"].keys())
        if first["packages"].get(name) != other["packages"].get(name)
    ]
    if not found:
        return []
    return [f"{another} differs from {one}: {', '.join(found)}; run the stage stack again"]


def promise(flags: Sequence[str]) -> str:
    """What oneDNN's kernel must be named after on a CPU with these flags, or ""."""
    return next((kernel for flag, kernel in PROMISES if flag in flags), "")


def rows(request: Request, answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a host that answered."""
    return [
        {
            "name": request.hosts[answer["rank"]].name,
            "address": request.hosts[answer["rank"]].address,
            "hostname": answer["hostname"],
            "python": answer["python"],
            "kernel": answer["kernel"],
            "versions": {name: answer["packages"].get(name, "") for name in SHOWN},
        }
        for answer in answers
    ]


def answer_as_rank() -> dict[str, Any]:
    """What one rank finds out about its host and its way to the others."""
    # before torch: oneDNN reads it when it is loaded
    os.environ["ONEDNN_VERBOSE"] = "1"
    addresses = os.environ["FTCLUSTER_ADDRESSES"].split(",")
    flags = cpu_flags()
    with captured_output() as log:
        multiply("amx_bf16" in flags or "avx512_bf16" in flags)
    kernel = kernel_of(log.read_text(errors="replace"))
    log.unlink()

    from ftcluster_train.world import join_world, leave_world, sum_over_ranks

    world = join_world()
    found = sum_over_ranks([float(world.rank + 1), 0.5])
    right = found == [world.size * (world.size + 1) / 2, 0.5 * world.size]
    milliseconds = timed_all_reduce() if world.size > 1 else None
    leave_world()
    return {
        "rank": world.rank,
        "hostname": socket.gethostname(),
        "has_address": has_address(addresses[world.rank]),
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": {d.metadata["Name"].lower(): d.version for d in distributions()},
        "flags": flags,
        "kernel": kernel,
        "sum_right": right,
        "all_reduce_ms": milliseconds,
    }


def cpu_flags() -> list[str]:
    """The flags of PROMISES that this CPU has."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return [flag for flag, _ in PROMISES if flag in line.split()]


@contextlib.contextmanager
def captured_output() -> Iterator[Path]:
    """What C code prints inside goes to a file: oneDNN's log does not pass through Python."""
    descriptor, name = tempfile.mkstemp(prefix="ftcluster-onednn-")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(descriptor, 1)
    try:
        yield Path(name)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(descriptor)


def multiply(bf16: bool) -> None:
    """One matrix product as a training step makes it."""
    import torch

    matrix = torch.ones(PRODUCT, PRODUCT)
    if bf16:
        matrix = matrix.bfloat16()
        matrix @ matrix
    else:  # fp32 products go through MKL; oneDNN's own show in a convolution
        torch.nn.functional.conv1d(matrix[None], matrix[:, :, None])


def kernel_of(log: str) -> str:
    """The implementation in the last line of oneDNN's log that tells of an execution."""
    fields = [line.split(",") for line in log.splitlines() if ",primitive,exec,cpu," in line]
    names = [words[6] for words in fields if len(words) > 6]
    return names[-1] if names else ""


def timed_all_reduce() -> float:
    """Median milliseconds of an all-reduce of TIMED_BYTES in fp32."""
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(TIMED_BYTES // 4)
    times = []
    for _ in range(TIMED_TURNS):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times)[TIMED_TURNS // 2]


def has_address(address: str) -> bool:
    """Whether one of this host's interfaces has the address, which may be a name."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def main() -> int:
    """Entry point; returns the exit code."""
    if sys.argv[1:] == ["rank"]:
        # one write, so that the lines of several ranks do not mix
        sys.stdout.write(MARK + json.dumps(answer_as_rank()) + "\n")
        sys.stdout.flush()
        return 0
    report = verify(Request.read(sys.stdin.read()))
    print(json.dumps(asdict(report)))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
