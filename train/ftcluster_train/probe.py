"""What one rank of verify finds out about its host and its way to the others.

    mpirun ... python -m ftcluster_train.probe

Its errand comes in the environment. It prints one JSON document in pieces and ends with 0, also
when something is wrong: where a rank fails, mpirun ends the others before they have said what they
know.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import Any

from ftcluster_common.launch import RUN_VARIABLE
from ftcluster_train.distributed.connectivity import WAIT_SECONDS, meet, together
from ftcluster_train.verification.consistency import PROMISES
from ftcluster_train.verification.matmul_benchmark import measure_speed, read
from ftcluster_train.verification.open_ports import take_calls

ERRAND = "FTCLUSTER_ERRAND"
RUN_PREFIX = "verify-"  # of the run's id, which every process that belongs to it has
LIMIT_SECONDS = 180  # torch is imported from a cold disk the first time
COLLECTIVE_SECONDS = 30
MARK = "FTCLUSTER-VERIFY"
# Of one line. The kernel does not mix writes to a pipe that are shorter than 4096 bytes, and mpirun
# hands on what it reads.
PIECE = 3000
PRODUCT = 256  # rows and columns of the product whose kernel is looked at
TIMED_BYTES = 4 << 20
TIMED_TURNS = 5


@dataclass(frozen=True)
class Errand:
    """What the ranks are to find out.

    Attributes:
        addresses: of each rank's host.
        cores: physical cores of each rank's host, 0 where they are not known.
        measure: whether speeds are measured.
        ports: at each rank's host, those that somebody else calls.
    """

    addresses: tuple[str, ...]
    cores: tuple[int, ...]
    measure: bool
    ports: tuple[tuple[int, ...], ...] = ()

    def write(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Errand":
        """The inverse of `write`."""
        data = json.loads(text)
        return cls(
            addresses=tuple(data["addresses"]),
            cores=tuple(data["cores"]),
            measure=data["measure"],
            ports=tuple(map(tuple, data["ports"])),
        )


def find_out(errand: Errand, rank: int, answer: dict[str, Any]) -> None:
    """Fill the answer, step by step, so that what is known so far stays where one fails."""
    answer |= describe(errand.addresses[rank])
    bf16 = not {"amx_bf16", "avx512_bf16"}.isdisjoint(answer["flags"])
    answer["kernel"] = kernel_used(bf16)

    import torch.distributed as dist

    from ftcluster_train.distributed.world import open_store

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=WAIT_SECONDS)
    store = open_store(address, port, rank, len(errand.addresses), limit)
    answer["unreached"] = meet(store, rank, errand.addresses)
    members = together(answer["unreached"])
    if rank not in members:
        answer["speed"] = measure_speed(errand.cores[rank], bf16) if errand.measure else None
        return
    answer |= join(dist.PrefixStore("members", store), address, members.index(rank), len(members))
    if errand.measure:
        from ftcluster_train.verification.network_benchmark import measure_links

        dist.barrier()  # all compute at the same time, as in training
        answer["speed"] = measure_speed(errand.cores[rank], bf16)
        dist.barrier()
        answer["links"] = [
            {**asdict(link), "ranks": [members[end] for end in link.ranks]}
            for link in measure_links(members.index(rank), len(members))
        ]
    dist.barrier()  # the store is the head's; nobody needs it any longer
    dist.destroy_process_group()


def describe(address: str) -> dict[str, Any]:
    """What can be told of this host without torch."""
    return {
        "hostname": socket.gethostname(),
        "has_address": has_address(address),
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": {d.metadata["Name"].lower(): d.version for d in distributions()},
        "flags": cpu_flags(),
        "busy": other_runs(),
    }


def join(store: Any, head: str, rank: int, size: int) -> dict[str, Any]:
    """Make a process group as training does, and see that a sum over it is right."""
    import torch.distributed as dist

    from ftcluster_train.distributed.world import interface_towards, sum_over_ranks

    interface = interface_towards(head)
    speed = read(Path(f"/sys/class/net/{interface}/speed"))
    # gloo would take the interface that the host's name resolves to, often the loopback
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    limit = timedelta(seconds=COLLECTIVE_SECONDS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    found = sum_over_ranks([float(rank + 1), 0.5])
    return {
        "interface": interface,
        # unknown is -1, and that as an unsigned number in some drivers
        "interface_mbits": int(speed) if speed.isdigit() and 0 < int(speed) < 2**32 - 1 else None,
        "sum_right": found == [size * (size + 1) / 2, 0.5 * size],
        "all_reduce_ms": timed_all_reduce() if size > 1 else None,
    }


def cpu_flags() -> list[str]:
    """The flags of PROMISES that this CPU has."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return [flag for flag, _ in PROMISES if flag in line.split()]


def other_runs(processes: Path = Path("/proc")) -> list[str]:
    """Ids of runs that are at work on this host, as far as this user sees its processes."""
    found = set()
    for file in processes.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            for variable in file.read_bytes().split(b"\0"):
                name, _, run = variable.decode(errors="replace").partition("=")
                if name == RUN_VARIABLE and not run.startswith(RUN_PREFIX):
                    found.add(run)
    return sorted(found)


def kernel_used(bf16: bool) -> str:
    """What oneDNN's own log calls the kernel of a product as a training step makes it."""
    import torch

    matrix = torch.ones(PRODUCT, PRODUCT)
    verbose = torch.backends.mkldnn.verbose
    with captured_output() as log, verbose(torch.backends.mkldnn.VERBOSE_ON):
        if bf16:
            matrix = matrix.bfloat16()
            matrix @ matrix
        else:  # fp32 products go through MKL; oneDNN's own show in a convolution
            torch.nn.functional.conv1d(matrix[None], matrix[:, :, None])
    text = log.read_text(errors="replace")
    log.unlink()
    return kernel_of(text)


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
    return median(times)


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


def pieces(rank: int, answer: dict[str, Any]) -> list[str]:
    """An answer as lines that `read_answers` finds among others."""
    text = json.dumps(answer)
    parts = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    return [f"{MARK} {rank} {number} {len(parts)} {part}\n" for number, part in enumerate(parts)]


def read_answers(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The answers among what mpirun printed, by rank; those with a piece missing are left out."""
    found: dict[int, dict[int, str]] = {}
    counts = {}
    for line in lines:
        _, mark, text = line.partition(f"{MARK} ")
        words = text.rstrip("\n").split(" ", 3) if mark else []
        if len(words) == 4 and all(word.isdigit() for word in words[:3]):
            rank, number, counts[rank] = int(words[0]), int(words[1]), int(words[2])
            found.setdefault(rank, {})[number] = words[3]
    answers = []
    for rank, parts in sorted(found.items()):
        if len(parts) == counts[rank]:
            with contextlib.suppress(ValueError):
                answers.append(json.loads("".join(parts[number] for number in sorted(parts))))
    return answers


def main() -> int:
    """Entry point; returns the exit code."""
    # whatever the others wait for, nothing of this is left on a host for long
    signal.alarm(LIMIT_SECONDS)
    rank = int(os.environ["PMI_RANK"])
    answer: dict[str, Any] = {"rank": rank, "error": ""}
    errand = Errand.read(os.environ[ERRAND])
    try:
        with take_calls(errand.ports[rank] if errand.ports else ()) as calls:
            find_out(errand, rank, answer)
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    answer["calls"] = asdict(calls)
    for line in pieces(rank, answer):
        sys.stdout.write(line)
        sys.stdout.flush()  # one write each, so that the lines of several ranks do not mix
    return 0


if __name__ == "__main__":
    sys.exit(main())
