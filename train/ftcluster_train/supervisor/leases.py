"""A run's leases on all of its hosts, each kept by a process of `lease` there.

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
from ftcluster_train.supervisor.lease import HELD, OPEN, TAKEN, UNIT
from ftcluster_train.supervisor.ssh_check import (
    HostFailure,
    ask_all,
    failed,
    no_answer,
    no_ssh,
    same_stack,
)

WAIT_SECONDS = 2.0  # between two looks at hosts that another run uses
END_SECONDS = 3.0


def firewall_notice(host: str) -> str:
    """What a user should know of a host that lacks them."""
    return (
        f"{host}: the firewall's rules that setup has made were not loaded ({UNIT} is not active), "
        f"so its ports of training may be open to others: sudo systemctl restart {UNIT} there"
    )


class Leases:
    """The leases that a run holds; with `share` it also uses hosts that another run has."""

    def __init__(self, share: bool) -> None:
        self._share = share
        self._holders: dict[Host, _Holder] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def take(
        self, launch: Launch, stack: Path, waiting: Callable[[str], None] | None = None
    ) -> list[HostFailure]:
        """Hold the leases of a launch's hosts, of all or of none that was not held before.

        The head comes first: of two runs that wait for the same hosts, one goes on. The first time
        this includes the idle hosts; a restart goes on without theirs.

        Args:
            stack: its folder, which all of them need to have.
            waiting: called with what other runs use, where their end is to be waited for.

        Returns:
            Hosts that another run uses, or that do not answer.
        """
        said = ""
        others = launch.hosts[1:] if self._holders else launch.hosts[1:] + launch.idle
        needed = launch.hosts if launch.restarts else launch.hosts + launch.idle
        while True:
            before = self._held()
            self._drop(before - {*launch.hosts, *launch.idle})
            refused = self._ask(launch, launch.hosts[:1], stack)
            refused = refused or self._ask(launch, others, stack)
            refused = [one for one in refused if one.host in needed]
            if refused:
                self._drop(self._held() - before)
            if not refused or not waiting or not all(one.in_use for one in refused):
                return refused
            words = "; ".join(f"{one.host.name}: {one.reason}" for one in refused)
            if words != said:
                waiting(said := words)
            time.sleep(WAIT_SECONDS)

    @property
    def without_rules(self) -> list[str]:
        """The hosts whose firewall's rules were not loaded when they were asked last."""
        return [host.name for host, one in self._holders.items() if one.held and one.is_open]

    def release(self) -> None:
        """Give all leases back; waits until the hosts have done so, but not long for a lost one."""
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
        words = [str(stack / "bin" / "python"), "-B", "-m", "ftcluster_train.host.lease"]
        words += ["hold", str(Path(launch.run_dir).parent), launch.run]
        words += [f"{launch.timeouts.supervisor:g}"]
        words += ["--share"] if self._share else []
        if host == launch.hosts[0]:
            return words
        there = same_stack(stack, f"cd / && exec {shlex.join(words)}")
        return ["ssh", "-F", launch.ssh_config, host.address, there]

    def _held(self) -> set[Host]:
        return {host for host, one in self._holders.items() if one.held}

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
        process: on the head, or ssh to the host.
        held: whether it has said so.
        is_open: whether the host lacks its firewall's rules.
    """

    def __init__(self, host: Host, command: list[str], timeouts: Timeouts) -> None:
        self._host, self._timeouts = host, timeouts
        self.held = self.is_open = False
        # it is none of the run's processes, which it outlives
        environment = {key: value for key, value in os.environ.items() if key != RUN_VARIABLE}
        self.process = subprocess.Popen(
            command, env=environment, cwd="/", bufsize=0, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdin
        os.set_blocking(self.process.stdin.fileno(), False)  # one full pipe would starve all leases

    def send(self, line: bytes) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError, ValueError):  # it has ended, or is closed
            self.process.stdin.write(line)

    def ask(self) -> HostFailure | None:
        """Why the run does not have the host."""
        self.send(b"ask\n")
        seconds = self._timeouts.ssh_again if self.held else self._timeouts.ssh
        answer = self._answer(seconds)
        self.held, self.is_open = answer.startswith(HELD), answer.endswith(OPEN)
        if self.held:
            return None
        if answer:
            return HostFailure(self._host, answer.removeprefix(TAKEN), False, in_use=True)
        try:
            _, words = self.process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            return no_answer(self._host, seconds)
        return failed(self._host, self.process.returncode, words.decode(errors="replace"))

    def _answer(self, seconds: float) -> str:
        """The next answer; "" if it has ended or does not answer."""
        assert self.process.stdout
        text = b""
        output = select.poll()  # select() takes no descriptor above 1023, as with 340 hosts
        output.register(self.process.stdout, select.POLLIN)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not output.poll(left * 1000):
                break
            data = os.read(self.process.stdout.fileno(), 4096)
            if not data:
                break
            text += data
            for line in text.decode(errors="replace").split("\n")[:-1]:
                # a login script may say more
                if line in (HELD, HELD + OPEN) or line.startswith(TAKEN):
                    return line
        return ""

    def close(self) -> None:
        """Have it end."""
        assert self.process.stdin
        if self.held:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        else:
            self.process.kill()
