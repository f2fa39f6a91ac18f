"""A run's leases on all of its hosts, each held by a process of `lease` on that host.

Standard library only.
"""

import contextlib
import os
import re
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ftcluster_common.protocol.launch import RUN_VARIABLE, Host, Launch
from ftcluster_common.protocol.timeouts import BEAT_SECONDS, Timeouts
from ftcluster_train.supervisor.lease import FREE, HELD, OPEN, STOPPING, TAKEN, UNIT
from ftcluster_train.supervisor.ssh_check import (
    HostFailure,
    ask_all,
    failed,
    no_answer,
    no_ssh,
    same_stack,
)
from ftcluster_train.supervisor.tickets import ticket_name

WAIT_SECONDS = 2.0  # between two requests for hosts that another run uses
END_SECONDS = 3.0
END_CHANGE_SECONDS = 30.0  # smaller changes of the expected end are not sent
ASK, PLACE = b"ask\n", b"place\n"
_REFUSAL = re.compile(rf"{TAKEN}\d+ ")
_UNTIL = re.compile(", until about [^)]*")  # changes often, so it is no reason for another notice


def firewall_notice(host: str) -> str:
    """Return the notice that a host's firewall rules are not loaded."""
    return (
        f"{host}: the firewall rules of setup are not loaded ({UNIT} is not active), so others may "
        f"reach its training ports: run sudo systemctl restart {UNIT} there"
    )


class Leases:
    """The leases that a run holds."""

    def __init__(self, share: bool, by: str = "", queued: float | None = None) -> None:
        """Start with no lease.

        Args:
            share: True if the run also uses hosts that another run uses.
            by: user and machine that started the run; "" if unknown.
            queued: start of the run in seconds since 1970, which decides its place in the hosts'
                queues; None means the current time.
        """
        self._share, self._by = share, by
        self._queued = time.time() if queued is None else queued
        self._ends = 0
        self._holders: dict[Host, _Holder] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def take(
        self, launch: Launch, stack: Path, waiting: Callable[[str], None] | None = None
    ) -> list[HostFailure]:
        """Take the leases of a launch's hosts; if a host refuses, give back all new leases.

        A run that waits has a ticket in the queue of each host. All hosts grant a lease to the run
        that was queued first, so of two runs that wait for the same hosts, only one continues. At
        the first call the idle hosts must grant their leases too; a restart continues without them.

        Args:
            stack: folder of the stack, which every host must have.
            waiting: called with a string that names the run's place in the queue and the hosts that
                other runs use; None to not wait for these hosts.

        Returns:
            Hosts that another run uses, or that do not answer.
        """
        announced = ""
        others = launch.hosts[1:] if self._holders else launch.hosts[1:] + launch.idle
        needed = launch.hosts if launch.restarts else launch.hosts + launch.idle
        if waiting:  # take a place in all queues before asking for the first host
            asked = self._ask(launch, (*launch.hosts[:1], *others), stack, queue=True, verb=PLACE)
            if failures := [
                failure for failure in asked if not failure.in_use and failure.host in needed
            ]:
                return failures
        while True:
            before = self._held()
            self._drop(before - {*launch.hosts, *launch.idle})
            refused = self._ask(launch, launch.hosts[:1], stack, queue=waiting is not None)
            if refused and waiting:  # name all hosts that the run waits for
                asked = self._ask(launch, others, stack, queue=True, verb=PLACE)
                refused += [failure for failure in asked if failure.reason != FREE]
            else:
                refused = refused or self._ask(launch, others, stack, queue=waiting is not None)
            refused = [failure for failure in refused if failure.host in needed]
            goes_on_waiting = bool(
                waiting and refused and all(failure.in_use for failure in refused)
            )
            for host in self._held() - before if refused else ():
                if goes_on_waiting:
                    self._holders[host].give_back()
                else:
                    self._drop([host])
            if not goes_on_waiting or not waiting:
                return refused
            if (key := _UNTIL.sub("", text := _waiting_text(refused))) != announced:
                announced = key
                waiting(text)
            time.sleep(WAIT_SECONDS)

    def expect_end(self, seconds: float) -> None:
        """Send the hosts the run's expected end, in seconds since 1970, if it has changed."""
        if abs(seconds - self._ends) > END_CHANGE_SECONDS:
            self._ends = int(seconds)
            for holder in list(self._holders.values()):
                holder.send(f"ends {self._ends}\n".encode())

    @property
    def without_rules(self) -> list[str]:
        """The hosts whose firewall rules were not loaded at the last request."""
        held = {host: holder for host, holder in self._holders.items() if holder.held}
        return [host.name for host, holder in held.items() if holder.is_open]

    def release(self) -> None:
        """Give all leases back; wait for the hosts to do so, but at most END_SECONDS."""
        self._ended.set()
        holders = list(self._holders.values())
        self._drop(set(self._holders))
        deadline = time.monotonic() + END_SECONDS
        for holder in holders:
            try:
                holder.process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                holder.process.kill()

    def _ask(
        self, launch: Launch, hosts: Sequence[Host], stack: Path, *, queue: bool, verb: bytes = ASK
    ) -> list[HostFailure]:
        def ask(host: Host) -> HostFailure | None:
            try:
                holder = self._holders.get(host)
                if holder is None or holder.process.poll() is not None:
                    command = self._command(launch, host, stack, queue)
                    self._holders[host] = holder = _Holder(host, command, launch.timeouts)
            except FileNotFoundError:
                return no_ssh(host)
            refusal = holder.ask(verb)
            if refusal and not refusal.in_use:
                del self._holders[host]
                holder.close()
            return None if refusal and refusal.in_use and self._share else refusal

        return ask_all(hosts, ask)

    def _command(self, launch: Launch, host: Host, stack: Path, queue: bool) -> list[str]:
        command = [str(stack / "bin" / "python"), "-B", "-m", "ftcluster_train.host.lease"]
        command += ["hold", str(Path(launch.run_dir).parent), launch.run]
        command += [f"{launch.timeouts.supervisor:g}"]
        command += ["--share"] if self._share else []
        command += ["--by", self._by] if self._by else []
        command += ["--queue", ticket_name(self._queued, launch.run)] if queue else []
        if host == launch.hosts[0]:
            return command
        there = same_stack(stack, f"cd / && exec {shlex.join(command)}")
        return ["ssh", "-F", launch.ssh_config, host.address, there]

    def _held(self) -> set[Host]:
        return {host for host, holder in self._holders.items() if holder.held}

    def _drop(self, hosts: Collection[Host]) -> None:
        for host in hosts:
            self._holders.pop(host).close()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            for holder in list(self._holders.values()):
                holder.send(b"\n")


def _waiting_text(refused: Sequence[HostFailure]) -> str:
    """Return the place of a run in the queue, and the hosts that it waits for."""
    place = max(failure.place for failure in refused)
    hosts = "; ".join(f"{failure.host.name}: {failure.reason}" for failure in refused)
    return f"{f' (place {place} in the queue)' if place else ''}: {hosts}"


class _Holder:
    """The process that holds one host's lease, and its pipes.

    Attributes:
        process: `lease hold` on the head, or ssh to the host.
        held: True if the process has confirmed that it holds the lease.
        is_open: True if the host lacks its firewall rules.
    """

    def __init__(self, host: Host, command: list[str], timeouts: Timeouts) -> None:
        self._host, self._timeouts = host, timeouts
        self.held = self.is_open = False
        # The process must not count as a process of the run, because it outlives these processes.
        environment = {key: value for key, value in os.environ.items() if key != RUN_VARIABLE}
        self.process = subprocess.Popen(
            command, env=environment, cwd="/", bufsize=0, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdin
        os.set_blocking(self.process.stdin.fileno(), False)  # one full pipe would starve all leases

    def send(self, line: bytes) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError, ValueError):  # the process has ended, or closed its pipe
            self.process.stdin.write(line)

    def give_back(self) -> None:
        """Give the lease back, and keep the place in the queue."""
        self.send(b"free\n")
        self.held = False

    def ask(self, verb: bytes = ASK) -> HostFailure | None:
        """Request the lease; return why the run does not get the host, or None if it does.

        Args:
            verb: ASK, or PLACE to take a place in the queue without the lease.
        """
        self.send(verb)
        seconds = self._timeouts.ssh_again if self.held else self._timeouts.ssh
        answer = self._answer(seconds)
        self.held, self.is_open = answer.startswith(HELD), answer.endswith(OPEN)
        if self.held:
            return None
        if answer == STOPPING:
            return HostFailure(self._host, "it is shutting down")
        if answer:
            place, _, reason = answer.removeprefix(TAKEN).partition(" ")
            return HostFailure(self._host, reason, in_use=True, place=int(place))
        try:
            _, stderr = self.process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            return no_answer(self._host, seconds)
        return failed(self._host, self.process.returncode, stderr.decode(errors="replace"))

    def _answer(self, seconds: float) -> str:
        """Return the next answer; "" if the process has ended or does not answer in time."""
        assert self.process.stdout
        text = b""
        output = select.poll()  # select() refuses descriptors above 1023, which 340 hosts need
        output.register(self.process.stdout, select.POLLIN)
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            if not output.poll(remaining * 1000):
                break
            data = os.read(self.process.stdout.fileno(), 4096)
            if not data:
                break
            text += data
            for line in text.decode(errors="replace").split("\n")[:-1]:
                # a login script may print other lines
                if line in (HELD, HELD + OPEN, STOPPING) or _REFUSAL.match(line):
                    return line
        return ""

    def close(self) -> None:
        """Let the process end, and with it the lease."""
        assert self.process.stdin
        if self.held:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        else:
            self.process.kill()
