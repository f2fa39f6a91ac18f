"""The lease of a host, which one run uses at a time: the program that keeps it there.

    python -m ftcluster_train.host.lease hold RUNS_DIR RUN SECONDS [--share]
    python -m ftcluster_train.host.lease look RUNS_DIR   who has it; then exits with 3

`hold` keeps the lease, a lock on RUNS_DIR/.lease, while lines come on stdin, SECONDS apart at most,
and then for as long as processes of the run are left on this host. The kernel frees it, however
`hold` ends. Each line `ask` is answered: `held`, on a host without its firewall's rules `held
open`, or `taken` and by which run. It tries to take the lease when it is asked, with --share at
every line. `leases` starts it on all hosts of a run.

The firewall's rules of a host were loaded if the unit that does so is active, which systemd tells
everybody; only root may list rules. Those that were flushed behind its back are not missed.

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

NAME = ".lease"
HELD, OPEN = "held", " open"
IN_USE = 3  # exit code of the verb `look`
HINT = (
    "wait for its end with --wait, end it with ftcluster stop RUN, or share the hosts with "
    "--share-hosts"
)
OWN_SECONDS = 10.0  # for processes that the run itself has left from before
LOOK_SECONDS = 0.5  # somebody may be looking at the lease, or have it but for a moment
PAUSE_SECONDS = 0.05  # between two tries to take it
# of the role firewall
RULES, UNIT = Path("/etc/ftcluster/firewall.nft"), "ftcluster-firewall.service"
NOT_ACTIVE = (3, 4)  # exit codes of `systemctl is-active`: not active, no such unit
SYSTEMCTL_SECONDS = 5.0
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
                mine = f"{HELD}{OPEN * lacks_rules()}" if held else f"{TAKEN}{holder(lease)}"
                os.write(1, f"{mine}\n".encode())
    while held and any(map(is_running, processes_of(run))):
        time.sleep(1)


def take(lease: int, run: str) -> bool:
    """Take the lease of an open file, if no other run has it; waits for the run's own processes."""

    def limit_seconds() -> float:
        own = os.pread(lease, 4096, 0).startswith(f"{run} ".encode())
        return OWN_SECONDS if own else LOOK_SECONDS

    if not lock_within(lease, EXCLUSIVE, limit_seconds, PAUSE_SECONDS):
        return False
    os.ftruncate(lease, 0)
    os.pwrite(lease, f"{run} {int(time.time())}\n".encode(), 0)
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
        return "" if try_lock(lease, SHARED) else holder(lease)
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


if __name__ == "__main__":
    sys.exit(main())
