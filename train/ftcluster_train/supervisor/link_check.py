"""A check of the connections between each pair of a run's hosts, started by the head.

If two hosts cannot exchange packets although both reach the head, every rank waits in a collective
and looks healthy. Each host listens at a port that the kernel chooses, as gloo does, and connects
to all others (`ftcluster_train.comm.connectivity --pairs`). Standard library only.
"""

import contextlib
import json
import math
import os
import re
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftcluster_common.protocol.launch import RUN_VARIABLE, Host, Launch
from ftcluster_train.comm.connectivity import (
    CONNECT_SECONDS,
    ERRORS_MARK,
    PORT_MARK,
    connected_ranks,
)
from ftcluster_train.io.stack import own_stack
from ftcluster_train.supervisor.ssh_causes import LINK
from ftcluster_train.supervisor.ssh_check import HostFailure

MODULE = "ftcluster_train.comm.connectivity"
MOST_HOSTS = 128  # each pair needs a connection, and each host needs a process on the head
MOST_PAIRS = 3  # pairs that a message names
MARGIN_SECONDS = 3.0  # for busy hosts, beyond the time-out of a connection
END_SECONDS = 1.0
PORT = re.compile("[0-9]{1,5}")
MOST_ERROR = 100  # characters of a host's error
ALL_REACH = "all hosts reach each other"


@dataclass(frozen=True)
class Gap:
    """A host that cannot connect to another host.

    Attributes:
        port: TCP port at which `other` listened.
        error: reason, such as "timed out".
    """

    host: Host
    other: Host
    port: int
    error: str


@dataclass(frozen=True)
class Links:
    """The result of a check.

    Attributes:
        hosts: the checked hosts, the head first.
        gaps: connections that failed, in the order of the hosts.
        silent: hosts that took no part, because the head got no response over ssh.
    """

    hosts: tuple[Host, ...]
    gaps: tuple[Gap, ...] = ()
    silent: tuple[Host, ...] = ()

    def sentence(self) -> str:
        """Return one line for users; "" if there is only one host."""
        if len(self.hosts) < 2:
            return ""
        silent = ", ".join(host.name for host in self.silent)
        asked = f"no response from {silent} to a check of the links" if silent else ""
        if not self.gaps:
            return asked or ALL_REACH
        return "; ".join(filter(None, (_gaps_sentence(self.gaps, self.hosts[0]), asked)))

    def refused(self) -> list[HostFailure]:
        """Return the hosts to drop so that all others reach each other; never the head."""
        place = {host: number for number, host in enumerate(self.hosts)}
        unreached: list[list[int]] = [[] for _ in self.hosts]
        for gap in self.gaps:
            unreached[place[gap.host]].append(place[gap.other])
        kept = connected_ranks(unreached)
        failures = []
        for number, host in enumerate(self.hosts):
            if number not in kept:
                gaps = [gap for gap in self.gaps if host in (gap.host, gap.other)]
                failures.append(HostFailure(host, _gaps_sentence(gaps, self.hosts[0]), LINK))
        return failures


def _gaps_sentence(gaps: Sequence[Gap], head: Host) -> str:
    """Return the sentence that names the pairs of hosts that do not reach each other.

    >>> head, a, b = (Host(f"xeon{n}", f"198.18.0.1{n}") for n in (1, 2, 3))
    >>> _gaps_sentence([Gap(a, b, 43, "timed out"), Gap(b, a, 44, "timed out")], head)[:70]
    'xeon2 cannot reach xeon3 (198.18.0.13:43: timed out), and xeon3 cannot'
    """
    by_pair: dict[frozenset[Host], list[Gap]] = {}
    for gap in gaps:
        by_pair.setdefault(frozenset((gap.host, gap.other)), []).append(gap)
    phrases = []
    for first, *back in list(by_pair.values())[:MOST_PAIRS]:
        a, b = first.host.name, first.other.name
        phrase = f"{a} cannot reach {b} ({first.other.address}:{first.port}: {first.error})"
        phrase += f", and {b} cannot reach {a}" if back else f", but {b} reaches {a}"
        if head not in (first.host, first.other):
            phrase += "; both reach the head"
        phrases.append(phrase)
    if len(by_pair) > MOST_PAIRS:
        phrases.append(f"pairs that cannot connect either: {len(by_pair) - MOST_PAIRS} more")
    return "; ".join(phrases)


class LinkCheck:
    """A check that runs in the background.

    It starts as soon as all ranks are idle for `suspicious_seconds`, because a link that is cut for
    a short time may be back once the ranks count as hung.

    Args:
        launch: the launch whose hosts are checked.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._links = Links(())
        self._thread: threading.Thread | None = None

    @property
    def suspicious_seconds(self) -> float:
        """The time after which idle ranks may be waiting for a link."""
        limit = self._launch.hang_seconds
        if limit is None:
            limit = self._launch.timeouts.silence
        return limit / 2 if limit else math.inf  # 0: ranks may be idle without limit

    def watch(self, idle: float) -> None:
        """Start the check if all ranks are idle for long; drop its result once a rank is active.

        Args:
            idle: seconds for which no rank has been active.
        """
        if idle > self.suspicious_seconds:
            self.start()
        elif self._thread and not self._thread.is_alive():
            self._thread, self._links = None, Links(())

    def start(self) -> None:
        """Start the check unless it has been started."""
        if self._thread is None and self._launch.ssh_config:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def result(self) -> Links:
        """Return the result; start the check if necessary, and wait for it."""
        self.start()
        if self._thread:
            self._thread.join()
        return self._links

    def _run(self) -> None:
        launch = self._launch
        self._links = check_links(launch.hosts, launch.ssh_config, own_stack(), launch.timeouts.ssh)


def check_links(hosts: Sequence[Host], ssh_config: str, stack: Path, limit_seconds: float) -> Links:
    """Have each host connect to each other host; return the connections that failed.

    Args:
        hosts: all hosts, the head first; only the first MOST_HOSTS are checked.
        limit_seconds: time for the hosts to respond, without the time that connections take.
    """
    hosts = tuple(hosts[:MOST_HOSTS])
    with _members(hosts, ssh_config, stack) as members:
        answers = _lines(members, PORT_MARK, limit_seconds)
        ports = {host: port for host, text in answers.items() if (port := read_port(text))}
        present = {host: members[host] for host in ports}
        for host, member in present.items():
            peers = {
                other.name: [other.address, port] for other, port in ports.items() if other != host
            }
            member.send(f"{json.dumps(peers)}\n")
        answers = _lines(present, ERRORS_MARK, CONNECT_SECONDS + MARGIN_SECONDS)
    errors = {}
    for host, text in answers.items():
        with contextlib.suppress(ValueError):
            errors[host] = read_errors(text)
    gaps = tuple(
        Gap(host, other, ports[other], errors[host][other.name])
        for host in hosts
        for other in ports
        if other.name in errors.get(host, {})
    )
    return Links(hosts, gaps, tuple(host for host in hosts if host not in errors))


def read_port(text: str) -> int | None:
    """Return the TCP port that a host has printed; None if the string is not a port number."""
    number = int(text) if PORT.fullmatch(text) else 0
    return number if 0 < number < 1 << 16 else None


def read_errors(text: str) -> dict[str, str]:
    """Return the errors that a host has printed, by the name of the host that it cannot reach.

    Raises:
        ValueError: the text is not a JSON object.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        document = None
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return {name: ascii(str(error))[1:-1][:MOST_ERROR] for name, error in document.items()}


class _Member:
    """The part of the check that runs on a host."""

    def __init__(self, command: Sequence[str]) -> None:
        # the process must not count as a process of the run, because those are being ended
        environment = {key: value for key, value in os.environ.items() if key != RUN_VARIABLE}
        self.process = subprocess.Popen(
            command, env=environment, cwd="/", bufsize=0, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._unread = b""

    @property
    def descriptor(self) -> int:
        assert self.process.stdout
        return self.process.stdout.fileno()

    def send(self, line: str) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError):  # the process has ended
            self.process.stdin.write(line.encode())

    def read(self, mark: str) -> str | None:
        """Read new output; return the text after the mark in the first line that contains it.

        The result is "" if the output has ended, and None if the line has not arrived yet.
        """
        data = os.read(self.descriptor, 65536)
        self._unread += data
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            _, found_mark, text = line.decode(errors="replace").partition(mark)
            if found_mark:
                return text.strip()
        return None if data else ""

    def close(self) -> None:
        """Let the process end."""
        assert self.process.stdin
        self.process.stdin.close()


@contextlib.contextmanager
def _members(hosts: Sequence[Host], ssh_config: str, stack: Path) -> Iterator[dict[Host, _Member]]:
    """Start the check's process on each host, on the first host without ssh."""
    members = {}
    for host in hosts:
        command = [str(stack / "bin" / "python"), "-B", "-m", MODULE, "--pairs", host.address]
        if host != hosts[0]:
            command = ["ssh", "-F", ssh_config, host.address, f"cd / && exec {shlex.join(command)}"]
        with contextlib.suppress(OSError):  # no ssh, or too many open files
            members[host] = _Member(command)
    try:
        yield members
    finally:
        for member in members.values():
            member.close()
        deadline = time.monotonic() + END_SECONDS
        for member in members.values():
            try:
                member.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            assert member.process.stdout
            member.process.stdout.close()


def _lines(members: dict[Host, _Member], mark: str, limit_seconds: float) -> dict[Host, str]:
    """Return the line with the mark that each process prints within the limit, by host."""
    deadline = time.monotonic() + limit_seconds
    output = select.poll()  # select() accepts no descriptor above 1023
    waiting = {member.descriptor: host for host, member in members.items()}
    for descriptor in waiting:
        output.register(descriptor, select.POLLIN)
    lines: dict[Host, str] = {}
    while waiting and (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in output.poll(remaining * 1000):
            host = waiting[descriptor]
            text = members[host].read(mark)
            if text is not None:
                lines[host] = text
                output.unregister(descriptor)
                del waiting[descriptor]
    return lines
