"""The lease of a host, which one run uses at a time, and a run's leases on all of its hosts.

    python -m ftcluster_train.host.lease hold RUNS_DIR RUN SECONDS [--share]
    python -m ftcluster_train.host.lease look RUNS_DIR   who has it; then exits with 3

`hold` keeps the lease, a lock on RUNS_DIR/.lease, while lines come on stdin, SECONDS apart at most,
and then for as long as processes of the run are left on this host. The kernel frees it, however
`hold` ends. Each line `ask` is answered: `held`, on a host without its firewall's rules `held
open`, or `taken` and by which run. It tries to take the lease when it is asked, with --share at
every line.

The firewall's rules of a host were loaded if the unit that does so is active, which systemd tells
everybody; only root may list rules. Those that were flushed behind its back are not missed.

Standard library only.
"""

import contextlib
import fcntl
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ftcluster_common.protocol.launch import RUN_VARIABLE, Host, Launch
from ftcluster_common.protocol.timeouts import BEAT_SECONDS, Timeouts
from ftcluster_train.io.processes import is_running, processes_of
from ftcluster_train.supervisor.ssh_check import (
    Refusal,
    ask_all,
    failed,
    no_answer,
    no_ssh,
    same_stack,
)

NAME = ".lease"
HELD, OPEN = "held", " open"
IN_USE = 3  # exit code of the verb `look`
HINT = (
    "wait for its end with --wait, end it with ftcluster stop RUN, or share the hosts with "
    "--share-hosts"
)
OWN_SECONDS = 10.0  # for processes that the run itself has left from before
LOOK_SECONDS = 0.5  # somebody may be looking at the lease, or have it but for a moment
# of the role firewall
RULES, UNIT = Path("/etc/ftcluster/firewall.nft"), "ftcluster-firewall.service"
NOT_ACTIVE = (3, 4)  # exit codes of `systemctl is-active`: not active, no such unit
SYSTEMCTL_SECONDS = 5.0
WAIT_SECONDS = 2.0  # between two looks at hosts that another run uses
END_SECONDS = 3.0
TAKEN = "taken "


def hold(runs: Path, run: str, silence_seconds: float, share: bool) -> None:
    """Hold the lease for a run, as stdin says.

    Args:
        silence_seconds: lines that are missing this long mean that the supervisor is gone.
        share: whether the run goes on without the lease, and takes it when it is free.
    """
    # they may reach the supervisor and all that it has started
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lease = os.open(runs / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o640)
    held = False
    while select.select([0], [], [], silence_seconds)[0]:
        lines = os.read(0, 4096)
        if not lines:
            break
        asked = b"ask" in lines
        held = held or ((asked or share) and take(lease, run))
        if asked:
            with contextlib.suppress(BrokenPipeError):
                mine = f"{HELD}{OPEN * lacks_rules()}" if held else f"taken {holder(lease)}"
                os.write(1, f"{mine}\n".encode())
    while held and any(map(is_running, processes_of(run))):
        time.sleep(1)


def take(lease: int, run: str) -> bool:
    """Take the lease of an open file, if no other run has it; waits for the run's own processes."""
    began = time.monotonic()
    while not lock(lease, fcntl.LOCK_EX):
        own = os.pread(lease, 4096, 0).startswith(f"{run} ".encode())
        if time.monotonic() - began > (OWN_SECONDS if own else LOOK_SECONDS):
            return False
        time.sleep(0.05)
    os.ftruncate(lease, 0)
    os.pwrite(lease, f"{run} {int(time.time())}\n".encode(), 0)
    return True


def lock(lease: int, kind: int) -> bool:
    """Lock an open file, unless another process has it locked."""
    try:
        fcntl.flock(lease, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def holder(lease: int) -> str:
    """Which run has the lease of an open file, for a person."""
    run, _, seconds = os.pread(lease, 4096, 0).decode("ascii", "replace").strip().partition(" ")
    if not seconds.isdecimal():
        return "another run is using it"
    since = time.gmtime(int(seconds))
    day = "" if since[:3] == time.gmtime()[:3] else "%Y-%m-%d "
    return f"run {run} is using it (since {time.strftime(f'{day}%H:%M UTC', since)})"


def current_holder(runs: Path) -> str:
    """Which run has the lease, for a person; "" if it is free."""
    try:
        lease = os.open(runs / NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    try:
        return "" if lock(lease, fcntl.LOCK_SH) else holder(lease)
    finally:
        os.close(lease)


def lacks_rules() -> bool:
    """Whether setup has made rules here and their unit is not active."""
    if not RULES.exists():
        return False
    try:
        done = subprocess.run(
            ["systemctl", "is-active", "--quiet", UNIT], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=SYSTEMCTL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode in NOT_ACTIVE


def firewall_notice(host: str) -> str:
    """What a user should know of a host that lacks them."""
    return (
        f"{host}: the firewall's rules that setup has made were not loaded ({UNIT} is not active), "
        f"so its ports of training may be open to others: sudo systemctl restart {UNIT} there"
    )


def main() -> int:
    """Entry point; returns the exit code."""
    verb, folder, *words = sys.argv[1:]
    try:
        if verb == "hold":
            hold(Path(folder), words[0], float(words[1]), "--share" in words)
            return 0
        found = current_holder(Path(folder))
    except OSError as error:
        print(f"the lease {folder}/{NAME} cannot be used: {error.strerror}", file=sys.stderr)
        return 1
    if found:
        print(f"{found}; {HINT}", file=sys.stderr)
    return IN_USE if found else 0


class Leases:
    """The leases that a run holds; with `share` it also uses hosts that another run has."""

    def __init__(self, share: bool) -> None:
        self._share = share
        self._holders: dict[Host, _Holder] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def take(
        self, launch: Launch, stack: Path, waiting: Callable[[str], None] | None = None
    ) -> list[Refusal]:
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

    def _ask(self, launch: Launch, hosts: Sequence[Host], stack: Path) -> list[Refusal]:
        def ask(host: Host) -> Refusal | None:
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

    def ask(self) -> Refusal | None:
        """Why the run does not have the host."""
        self.send(b"ask\n")
        seconds = self._timeouts.ssh_again if self.held else self._timeouts.ssh
        answer = self._answer(seconds)
        self.held, self.is_open = answer.startswith(HELD), answer.endswith(OPEN)
        if self.held:
            return None
        if answer:
            return Refusal(self._host, answer.removeprefix(TAKEN), False, in_use=True)
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


if __name__ == "__main__":
    sys.exit(main())
