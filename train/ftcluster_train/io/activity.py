"""Reads the activity of a rank's processes, and host conditions that may slow training down.

The conditions are CPU frequency, heat, stolen CPU time, swapping and other programs. Standard
library only.
"""

import contextlib
import os
import re
import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ftcluster_train.io.machine import counters, megahertz

# Linux, include/uapi/linux: netlink.h, sock_diag.h, inet_diag.h, tcp.h
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x1, 0x300, 2, 3
INET_DIAG_INFO = 2  # the attribute with struct tcp_info
INODE, ATTRIBUTES = 68, 72  # in struct inet_diag_msg
BYTES_ACKED, BYTES_RECEIVED = 120, 128  # in struct tcp_info
REPLY_SECONDS = 0.5
# Processes that have used more CPU seconds than this since the previous call are busy. The
# connections of busy processes are not read, because reading them takes longest.
BUSY_SECONDS = 0.1
NOTHING: Mapping[str, Any] = {}
SOCKET = re.compile(r"socket:\[(\d+)\]")
LEAST_CORES = 0.1  # programs that use fewer cores are not reported
NAMED_PROGRAMS = 3  # maximum number of reported programs
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def activity(
    root: int, main: Collection[int], before: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Return the activity of a process's descendants.

    Args:
        main: ids of the descendants that do the rank's work; if one of them is stopped, the rank
            counts as stopped.
        before: result of the previous call; {} at the first call.

    Returns:
        {} if there are no descendants, otherwise:
        state: T if one of `main` is stopped, D if any thread waits for a disk, R if any thread runs
            or waits for a CPU, else S.
        sleep: result of `sleep_of` for a process of `main` in state D; None if there is none.
        cpu: CPU seconds that the processes have used.
        memory: bytes of memory that the processes occupy.
        wire: bytes over open TCP connections, including local ones; while the processes are busy,
            the previous value.
    """
    pids = {*main, *descendants(root)}  # some kernels do not list descendants
    processes = {pid: process for pid in pids if (process := process_state(pid))}
    if not processes:
        return {}
    states = [process["state"] for process in processes.values()]
    stopped = any(processes[pid]["state"] in "Tt" for pid in main if pid in processes)
    asleep = [pid for pid in main if pid in processes and processes[pid]["state"] == "D"]
    cpu = round(sum(process["cpu"] for process in processes.values()), 2)
    computes = "wire" in before and cpu - before["cpu"] > BUSY_SECONDS
    # libraries load and save in threads, which wait for the disk instead of the main thread
    threads = set() if computes else {state for pid in processes for state in thread_states(pid)}
    waits = "D" in states or "D" in threads
    return {
        "state": "T" if stopped else "D" if waits else "R" if "R" in threads else "S",
        "sleep": sleep_of(asleep[0]) if asleep else None,
        "cpu": cpu,
        "memory": sum(process["memory"] for process in processes.values()),
        "wire": before["wire"] if computes else tcp_bytes(sockets_of(processes)),
    }


def descendants(root: int) -> list[int]:
    """Return the process ids of a process's children, grandchildren and so on."""
    below: list[int] = []
    waiting = [root]
    while waiting:
        pids = children(waiting.pop())
        below += pids
        waiting += pids
    return below


def children(pid: int) -> list[int]:
    """Return the process ids of the children of all threads of a process."""
    pids: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                pids += map(int, (task / "children").read_text().split())
    return pids


def process_state(pid: int) -> dict[str, Any]:
    """Return a process's state as in ps, CPU seconds, memory and start time; {} if it has ended.

    The memory is in bytes, and the start time in clock ticks since boot. The CPU seconds include
    the CPU seconds of ended children.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return {}
    # proc(5): state 3, utime 14, stime 15, cutime 16, cstime 17, starttime 22, rss 24
    cpu = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    memory = int(fields[21]) * PAGE
    return {"state": fields[0], "cpu": cpu, "memory": memory, "start": int(fields[19])}


def thread_states(pid: int) -> list[str]:
    """Return the state of each thread of a process as in ps; R: running or waiting for a CPU."""
    states = []
    with contextlib.suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def sleep_of(pid: int) -> tuple[int, int, str] | None:
    """Return a process's id, its number of sleeps so far, and the kernel function it sleeps in.

    The function is "" if the kernel does not report it. The result is None if the process has
    ended.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        slept = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    except (OSError, IndexError):  # the process has ended
        return None
    function = "0"
    with contextlib.suppress(OSError):
        function = Path(f"/proc/{pid}/wchan").read_text()
    return pid, slept, "" if function == "0" else function


def sockets_of(pids: Iterable[int]) -> set[int]:
    """Return the inodes of the sockets that are open in these processes."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # the socket is closed by now
                    if match := SOCKET.fullmatch(str(path.readlink())):
                        inodes.add(int(match[1]))
    return inodes


def tcp_bytes(inodes: Collection[int]) -> int:
    """Return the bytes sent and received over TCP sockets; 0 if the kernel does not report this."""
    with contextlib.suppress(OSError, struct.error):
        # the kernel lists all sockets of the host
        return sum(count for inode, count in _tcp_sockets() if inode in inodes) if inodes else 0
    return 0


def _tcp_sockets() -> Iterator[tuple[int, int]]:
    """Yield inode and bytes of each TCP socket of this host, queried as `ss -ti` does."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    with netlink:
        netlink.settimeout(REPLY_SECONDS)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack(
                "=IHHII BBBBI48x", ATTRIBUTES, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP,
                0, 0, family, socket.IPPROTO_TCP, 1 << INET_DIAG_INFO - 1, 0, 0xFFFFFFFF,
            )  # fmt: skip
            netlink.sendto(request, (0, 0))
            kind = 0
            while kind not in (NLMSG_DONE, NLMSG_ERROR):
                data = netlink.recv(1 << 18)
                while data:
                    length, kind = struct.unpack_from("=IH", data)
                    if kind == SOCK_DIAG_BY_FAMILY:
                        yield _inode_and_bytes(data[16:length])
                    data = data[(length + 3) & ~3 :]


def _inode_and_bytes(message: bytes) -> tuple[int, int]:
    """Return the socket's inode and bytes from a struct inet_diag_msg with its attributes."""
    (inode,) = struct.unpack_from("=I", message, INODE)
    rest = message[ATTRIBUTES:]
    while len(rest) >= 4:
        length, kind = struct.unpack_from("=HH", rest)
        if kind == INET_DIAG_INFO:
            info = rest[4:length]
            acked, received = (
                struct.unpack_from("=Q", info, at)[0] for at in (BYTES_ACKED, BYTES_RECEIVED)
            )
            return inode, acked + received
        rest = rest[max(length + 3 & ~3, 4) :]
    return inode, 0


class HostCondition:
    """A comparison of this host's state with the previous reading.

    Args:
        parent: id of the process from which all ranks of the run on this host descend.
        now: current time in seconds.
        folder: folder of the run.
    """

    def __init__(self, parent: int, now: float, folder: Path = Path("/")) -> None:
        self._parent, self._since, self._folder = parent, now, folder
        self._counters, self._swapped = counters(), _swapped_pages()
        self._programs = self._others()

    def read(self, now: float) -> dict[str, Any]:
        """Return the changes since the previous reading.

        Returns:
            mhz: current frequency of this process's cores; None if the kernel does not report it.
            throttled: number of times a CPU was throttled because of heat.
            stolen: share of all CPU time that the hypervisor gave to other virtual machines.
            swap: bytes per second read from swap.
            free: free bytes on the file system of the run's folder.
            programs: name, process id and used cores of other programs, the busiest first.
        """
        seconds = max(now - self._since, 1e-3)
        after, swapped, programs = counters(), _swapped_pages(), self._others()
        used = [
            (name, pid, (ticks - before) / TICKS / seconds)
            for (pid, name), ticks in programs.items()
            if (before := self._programs.get((pid, name), 0)) < ticks
        ]
        used.sort(key=lambda program: -program[2])
        condition = {
            "mhz": megahertz(os.sched_getaffinity(0)),
            "throttled": after.throttled - self._counters.throttled,
            "stolen": round(
                (after.stolen - self._counters.stolen) / max(1, after.ticks - self._counters.ticks),
                3,
            ),
            "swap": round((swapped - self._swapped) * PAGE / seconds),
            "free": free_bytes(self._folder),
            "programs": [
                [name, pid, round(cores, 1)]
                for name, pid, cores in used[:NAMED_PROGRAMS]
                if cores >= LEAST_CORES
            ],
        }
        self._since, self._counters, self._swapped = now, after, swapped
        self._programs = programs
        return condition

    def _others(self) -> dict[tuple[int, str], int]:
        """Return the CPU ticks of each process outside the run, by process id and name."""
        return cpu_ticks({self._parent, *descendants(self._parent)})


def free_bytes(folder: Path) -> int:
    """Return the free bytes on a folder's file system; 0 if it is read-only or missing."""
    try:
        state = os.statvfs(folder)
    except OSError:
        return 0
    return 0 if state.f_flag & os.ST_RDONLY else state.f_bavail * state.f_frsize


def cpu_ticks(without: Collection[int]) -> dict[tuple[int, str], int]:
    """Return CPU ticks by process id and name, for all visible processes not in `without`."""
    ticks = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) not in without:
            with contextlib.suppress(OSError):  # the process has ended
                text = (folder / "stat").read_text(errors="replace")
                name, _, rest = text.partition("(")[2].rpartition(")")
                fields = rest.split()
                ticks[int(folder.name), name] = int(fields[11]) + int(fields[12])  # utime, stime
    return ticks


def _swapped_pages() -> int:
    """Return the number of pages read from swap since the host booted."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("pswpin "):
                return int(line.split()[1])
    return 0
