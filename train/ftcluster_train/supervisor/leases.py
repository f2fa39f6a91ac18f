"""A run's leases on all of its hosts, each held by a process of `lease` there.

Standard library only.
"""

import contextlib
import os
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ftcluster_common.protocol.launch import RUN_VARIABLE, Host, Launch
from ftcluster_common.protocol.timeouts import BEAT_SECONDS, Timeouts
from ftcluster_train.supervisor.lease import HELD, OPEN, STOPPING, TAKEN, UNIT
from ftcluster_train.supervisor.ssh_check import (
    HostFailure,
    ask_all,
    failed,
    no_answer,
    no_ssh,
    same_stack,
)

WAIT_SECONDS = 2.0  # between two requests for hosts that another run uses
END_SECONDS = 3.0


def firewall_notice(host: str) -> str:
    """Return the notice that a host's firewall rules are not loaded."""
    return (
        f"{host}: the firewall rules of setup are not loaded ({UNIT} is not active), so others may "
        f"reach its training ports: run sudo systemctl restart {UNIT} there"
    )


class Leases:
    """The leases that a run holds; with `share` the run also uses hosts that another run uses."""

    def __init__(self, share: bool) -> None:
        self._share = share
        self._holders: dict[Host, _Holder] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def take(
        self, launch: Launch, stack: Path, waiting: Callable[[str], None] | None = None
    ) -> list[HostFailure]:
        """Take the leases of a launch's hosts; if a host refuses, give back all new leases.

        The head comes first, so that of two runs waiting for the same hosts, only one continues. At
        the first call the idle hosts must grant their leases too; a restart continues without them.

        Args:
            stack: folder of the stack, which every host must have.
            waiting: called with the hosts that other runs use; None: do not wait for them.

        Returns:
            Hosts that another run uses, or that do not answer.
        """
        announced = ""
        others = launch.hosts[1:] if self._holders else launch.hosts[1:] + launch.idle
        needed = launch.hosts if launch.restarts else launch.hosts + launch.idle
        while True:
            before = self._held()
            self._drop(before - {*launch.hosts, *launch.idle})
            refused = self._ask(launch, launch.hosts[:1], stack)
            refused = refused or self._ask(launch, others, stack)
            refused = [failure for failure in refused if failure.host in needed]
            if refused:
                self._drop(self._held() - before)
            if not refused or not waiting or not all(failure.in_use for failure in refused):
                return refused
            in_use = "; ".join(f"{failure.host.name}: {failure.reason}" for failure in refused)
            if in_use != announced:
                waiting(announced := in_use)
            time.sleep(WAIT_SECONDS)

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

    def _ask(self, launch: Launch, hosts: Sequence[Host], stack: Path) -> list[HostFailure]:
        def ask(host: Host) -> HostFailure | None:
            try:
                holder = self._holders.get(host)
                if holder is None or holder.process.poll() is not None:
                    command = self._command(launch, host, stack)
                    self._holders[host] = holder = _Holder(host, command, launch.timeouts)
            except FileNotFoundError:
                return no_ssh(host)
            refusal = holder.ask()
            if refusal and not refusal.in_use:
                del self._holders[host]
                holder.close()
            return None if refusal and refusal.in_use and self._share else refusal

        return ask_all(hosts, ask)

    def _command(self, launch: Launch, host: Host, stack: Path) -> list[str]:
        command = [str(stack / "bin" / "python"), "-B", "-m", "ftcluster_train.host.lease"]
        command += ["hold", str(Path(launch.run_dir).parent), launch.run]
        command += [f"{launch.timeouts.supervisor:g}"]
        command += ["--share"] if self._share else []
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

    def ask(self) -> HostFailure | None:
        """Ask for the lease; return why the run does not have the host, or None if it has it."""
        self.send(b"ask\n")
        seconds = self._timeouts.ssh_again if self.held else self._timeouts.ssh
        answer = self._answer(seconds)
        self.held, self.is_open = answer.startswith(HELD), answer.endswith(OPEN)
        if self.held:
            return None
        if answer == STOPPING:
            return HostFailure(self._host, "it is shutting down")
        if answer:
            return HostFailure(self._host, answer.removeprefix(TAKEN), in_use=True)
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
                if line in (HELD, HELD + OPEN, STOPPING) or line.startswith(TAKEN):
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
