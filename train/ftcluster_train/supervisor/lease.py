"""The program that holds the lease of a host; only one run uses a host at a time.

    M=ftcluster_train.host.lease
    python -m $M hold RUNS_DIR RUN SECONDS [--share] [--by TEXT] [--queue TICKET]
    python -m $M look RUNS_DIR     print who uses or waits for the host, if any, and exit with 3

The lease is a lock on RUNS_DIR/.lease. `leases` starts `hold` on all hosts of a run. `hold` keeps
the lease while lines arrive on stdin at most SECONDS apart. Then it keeps the lease until all
processes of the run on this host have ended. The kernel frees the lock however `hold` ends.

Lines on stdin:

    ask             try to take the lease
    place           only report the run's place
    free            give the lease back, and keep the ticket
    ends SECONDS    expected end of the run, in seconds since 1970

`hold` tries to take the lease at each line `ask`, and with --share at every line. It answers each
`ask` and `place` with `held`, with `held open` on a host that lacks its firewall rules, with
`stopping` on a host that is shutting down, or with `taken`, the run's place in the queue and who
has the host. With --queue the run has a ticket on this host. A run never takes the lease while
another run is ahead of it in the queue, see `tickets`.

The firewall rules of a host count as loaded if their unit is active. Every account can query the
unit's state, while only root can list rules. Rules that were flushed without systemd go unnoticed.

Standard library only.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ftcluster_train.io.locks import EXCLUSIVE, SHARED, lock_within, try_lock, unlock
from ftcluster_train.io.processes import is_running, processes_of
from ftcluster_train.io.shutdown import is_stopping
from ftcluster_train.supervisor.tickets import Tickets

NAME = ".lease"
HELD, OPEN, STOPPING = "held", " open", "stopping"
IN_USE = 3  # exit code of the verb `look`
FREE = "it was just given back"
HINT = (
    "wait for your turn with --queue, end the run with ftcluster stop RUN, or share the hosts with "
    "--share-hosts"
)
OWN_SECONDS = 10.0  # wait for processes of an earlier start of the same run
LOOK_SECONDS = 0.5  # wait for a process that holds the lease only for a moment
PAUSE_SECONDS = 0.05  # between two attempts to take the lease
# installed by the role firewall
RULES, UNIT = Path("/etc/ftcluster/firewall.nft"), "ftcluster-firewall.service"
NOT_ACTIVE = (3, 4)  # exit codes of `systemctl is-active`: not active, no such unit
SYSTEMCTL_SECONDS = 5.0
TAKEN = "taken "


@dataclass
class LeaseHolder:
    """The run for which this process holds or requests the lease.

    Attributes:
        by: user and machine that started the run; "" if unknown.
        share: True if the run starts without the lease, and takes the lease when it is free.
        ends: expected end in seconds since 1970; 0 if it is not known.
        held: True while this process has the lease.
    """

    runs: Path
    run: str
    by: str = ""
    share: bool = False
    ticket: str = ""
    ends: int = 0
    held: bool = False

    def __post_init__(self) -> None:
        """Open the lease, and queue the run if it has a ticket."""
        self._lease = os.open(self.runs / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o640)
        self._tickets = Tickets(self.runs, self.ticket)
        self._since = 0

    def hear(self, line: bytes) -> str:
        """Carry out a line of stdin; return the response, or "" for none."""
        verb, _, value = line.decode("ascii", "replace").partition(" ")
        if not self.held and (verb == "ask" or (self.share and verb != "free")):
            self.held = self._take()
        if verb == "free":
            self._free()
        elif verb == "ends" and value.isdecimal():
            self.ends = int(value)
            self._write()
        if verb not in ("ask", "place"):
            return ""
        if is_stopping():
            return STOPPING
        return f"{HELD}{OPEN * lacks_rules()}" if self.held else f"{TAKEN}{self._refusal()}"

    def _take(self) -> bool:
        """Take the lease if no other run has it; wait for this run's old processes."""

        def limit_seconds() -> float:
            is_own = os.pread(self._lease, 4096, 0).startswith(f"{self.run} ".encode())
            return OWN_SECONDS if is_own else LOOK_SECONDS

        self._tickets.draw()
        if self._others_before():
            return False
        if not lock_within(self._lease, EXCLUSIVE, limit_seconds, PAUSE_SECONDS):
            return False
        self.held, self._since = True, int(time.time())
        self._write()
        return True

    def _others_before(self) -> list[str]:
        return [run for run in self._tickets.ahead() if run != self.run]

    def _free(self) -> None:
        if self.held:
            self.held = False
            os.ftruncate(self._lease, 0)
            unlock(self._lease)

    def _write(self) -> None:
        """Write who has the lease, for the other runs' messages."""
        if self.held:
            lines = (f"{self.run} {self._since}", " ".join(self.by.split()), str(self.ends))
            os.ftruncate(self._lease, 0)
            os.pwrite(self._lease, "".join(f"{line}\n" for line in lines).encode(), 0)

    def _refusal(self) -> str:
        """Return this run's place in the queue, 0 without a ticket, and who has the host."""
        user = running(self.runs)
        before = [run for run in self._others_before() if not user.startswith(f"run {run} ")]
        place = len(before) + 1 if self.ticket else 0
        return f"{place} {'; '.join(filter(None, (user, waiting(before)))) or FREE}"


def hold(holder: LeaseHolder, silence_seconds: float) -> None:
    """Hold the lease for a run, as requested on stdin.

    Args:
        silence_seconds: the supervisor counts as gone after this long without a line.
    """
    # a signal for the supervisor may also reach its children, but must not end them
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    rest = b""
    while select.select([0], [], [], silence_seconds)[0]:
        data = os.read(0, 4096)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if answer := holder.hear(line):
                with contextlib.suppress(BrokenPipeError):
                    os.write(1, f"{answer}\n".encode())
    while holder.held and any(map(is_running, processes_of(holder.run))):
        time.sleep(1)


def described(text: str) -> str:
    """Return a phrase for users that names the run holding a lease.

    >>> described("mrpc-1 1767262500\\nops on bastion\\n0\\n")
    'run mrpc-1 of ops on bastion is using it (since 2026-01-01 10:15 UTC)'

    Args:
        text: content of the lease file. Versions without a queue wrote only the first line.
    """
    first, by, ends, *_ = [*text.split("\n"), "", ""]
    run, _, seconds = first.strip().partition(" ")
    if not seconds.isdecimal():
        return "another run is using it"
    times = f"since {_clock(int(seconds))}"
    if ends.isdecimal() and int(ends) > int(seconds):
        times += f", until about {_clock(int(ends))}"
    return f"run {run}{f' of {by}' if by else ''} is using it ({times})"


def _clock(seconds: int) -> str:
    moment = time.gmtime(seconds)
    day = "" if moment[:3] == time.gmtime()[:3] else "%Y-%m-%d "
    return time.strftime(f"{day}%H:%M UTC", moment)


def waiting(runs: Sequence[str]) -> str:
    """Return a phrase for users that names the runs which wait for a host; "" if there are none.

    >>> waiting(["a-1"]), waiting(["a-1", "b-1"])
    ('run a-1 waits for it', 'runs a-1, b-1 wait for it')
    """
    if not runs:
        return ""
    return f"run{'s' * (len(runs) > 1)} {', '.join(runs)} wait{'s' * (len(runs) == 1)} for it"


def running(runs: Path) -> str:
    """Return a phrase for users that names the run holding the lease; "" if it is free."""
    try:
        lease = os.open(runs / NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    try:
        if try_lock(lease, SHARED):
            return ""
        return described(os.pread(lease, 4096, 0).decode("utf-8", "replace"))
    finally:
        os.close(lease)


def usage(runs: Path) -> str:
    """Return a phrase that names the runs which use or wait for the host; "" if there are none."""
    user = running(runs)
    others = [run for run in Tickets(runs).ahead() if not user.startswith(f"run {run} ")]
    return "; ".join(filter(None, (user, waiting(others))))


def lacks_rules() -> bool:
    """Return True if setup has installed firewall rules here and their unit is not active."""
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


def main() -> int:
    """Entry point; returns the exit code."""
    verb, folder, *arguments = sys.argv[1:]
    try:
        if verb == "hold":
            run, seconds, *options = arguments
            values = dict(pairwise(options))
            by, ticket = values.get("--by", ""), values.get("--queue", "")
            hold(LeaseHolder(Path(folder), run, by, "--share" in options, ticket), float(seconds))
            return 0
        text = usage(Path(folder))
    except OSError as error:
        print(f"the lease {folder}/{NAME} cannot be used: {error.strerror}", file=sys.stderr)
        return 1
    if text:
        print(f"{text}; {HINT}", file=sys.stderr)
    return IN_USE if text else 0


if __name__ == "__main__":
    sys.exit(main())
