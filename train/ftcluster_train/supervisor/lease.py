"""The program that holds the lease of a host; only one run uses a host at a time.

    python -m ftcluster_train.host.lease hold RUNS_DIR RUN SECONDS [--share]
    python -m ftcluster_train.host.lease look RUNS_DIR   print the holder, if any, and exit with 3

The lease is a lock on RUNS_DIR/.lease. `leases` starts `hold` on all hosts of a run. `hold` keeps
the lease while lines arrive on stdin at most SECONDS apart. Then it keeps the lease until all
processes of the run on this host have ended. The kernel frees the lock however `hold` ends.

`hold` tries to take the lease at each line `ask`, and with --share at every line. It answers each
`ask` with `held`, with `held open` on a host that lacks its firewall rules, with `taken` and the
run that has the lease, or with `stopping` on a host that is shutting down.

The firewall rules of a host count as loaded if their unit is active. Every account may ask systemd
for that, while only root may list rules. Rules that were flushed without systemd go unnoticed.

Standard library only.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from ftcluster_train.io.locks import EXCLUSIVE, SHARED, lock_within, try_lock
from ftcluster_train.io.processes import is_running, processes_of
from ftcluster_train.io.shutdown import is_stopping

NAME = ".lease"
HELD, OPEN, STOPPING = "held", " open", "stopping"
IN_USE = 3  # exit code of the verb `look`
HINT = (
    "wait for its end with --wait, end it with ftcluster stop RUN, or share the hosts with "
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


def hold(runs: Path, run: str, silence_seconds: float, share: bool) -> None:
    """Hold the lease for a run, as requested on stdin.

    Args:
        silence_seconds: the supervisor counts as gone after this long without a line.
        share: True if the run starts without the lease, and takes it when it is free.
    """
    # a signal for the supervisor may also reach its children, but must not end them
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
                os.write(1, f"{answer_of(lease, held)}\n".encode())
    while held and any(map(is_running, processes_of(run))):
        time.sleep(1)


def answer_of(lease: int, held: bool) -> str:
    """Return the answer to `ask`."""
    if is_stopping():
        return STOPPING
    return f"{HELD}{OPEN * lacks_rules()}" if held else f"{TAKEN}{holder(lease)}"


def take(lease: int, run: str) -> bool:
    """Take the lease of an open file if no other run has it; wait for this run's old processes."""

    def limit_seconds() -> float:
        is_own = os.pread(lease, 4096, 0).startswith(f"{run} ".encode())
        return OWN_SECONDS if is_own else LOOK_SECONDS

    if not lock_within(lease, EXCLUSIVE, limit_seconds, PAUSE_SECONDS):
        return False
    os.ftruncate(lease, 0)
    os.pwrite(lease, f"{run} {int(time.time())}\n".encode(), 0)
    return True


def holder(lease: int) -> str:
    """Return a phrase for users that names the run holding the lease of an open file."""
    run, _, seconds = os.pread(lease, 4096, 0).decode("ascii", "replace").strip().partition(" ")
    if not seconds.isdecimal():
        return "another run is using it"
    since = time.gmtime(int(seconds))
    day = "" if since[:3] == time.gmtime()[:3] else "%Y-%m-%d "
    return f"run {run} is using it (since {time.strftime(f'{day}%H:%M UTC', since)})"


def current_holder(runs: Path) -> str:
    """Return a phrase for users that names the run holding the lease; "" if it is free."""
    try:
        lease = os.open(runs / NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    try:
        return "" if try_lock(lease, SHARED) else holder(lease)
    finally:
        os.close(lease)


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
            hold(Path(folder), arguments[0], float(arguments[1]), "--share" in arguments)
            return 0
        usage = current_holder(Path(folder))
    except OSError as error:
        print(f"the lease {folder}/{NAME} cannot be used: {error.strerror}", file=sys.stderr)
        return 1
    if usage:
        print(f"{usage}; {HINT}", file=sys.stderr)
    return IN_USE if usage else 0


if __name__ == "__main__":
    sys.exit(main())
