"""The faults: each function disturbs a running training and returns the details."""

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.observe import Process, oom_kill, sshd_above
from tests.faults.places import Hosts
from tests.faults.training import Training

CUT_SECONDS = (15.0, 30.0)  # range of seconds that a host is off or disconnected
LONG_CUT_SECONDS = (60.0, 90.0)  # range of seconds, longer than a restart takes
ROTATE_KEYS = """
set -e
mkdir /root/keys && mv /etc/ssh/ssh_host_* /root/keys
ssh-keygen -q -A && systemctl restart ssh
"""
RESTORE_KEYS = """
set -e
rm /etc/ssh/ssh_host_* && mv /root/keys/* /etc/ssh && rmdir /root/keys
systemctl restart ssh
"""
TESTBED = ("hosts", "16 ranks")
STEP_SECONDS = 60.0  # seconds of a clock step, longer than any timeout of a run that continues
LOSS_PERCENT = 2
DELAY_MS = 100.0  # milliseconds in each direction
# sitecustomize.py for a stack whose clock can be set; it affects only times that Python code reads
CLOCK = """
import os, time
real = time.time
time.time = lambda: real() + ({seconds} if os.path.exists({flag!r}) else 0)
"""


HOUR = 3600
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
OFFSET = "/run/faketime"  # seconds that a testbed host's clock is ahead
# Services and sessions read this file, so all processes of a run take the time from libfaketime.
# A real jump changes neither the monotonic clock nor the times of existing files.
HOST_CLOCK = f"""
set -e
echo +0 > {OFFSET} && chmod 644 {OFFSET}
cp -a /etc/environment /root/environment-of-clock
cat >> /etc/environment <<END
LD_PRELOAD={FAKETIME}
FAKETIME_TIMESTAMP_FILE={OFFSET}
FAKETIME_CACHE_DURATION=1
FAKETIME_DONT_FAKE_MONOTONIC=1
DONT_FAKE_MONOTONIC=1
NO_FAKE_STAT=1
END
"""
REAL_CLOCK = f"mv /root/environment-of-clock /etc/environment && rm -f {OFFSET}"


class NoTarget(Exception):
    """A training has nothing left that a fault could strike; a new training has."""


def nothing() -> None:
    """Do nothing, for faults that need no repair."""


@dataclass(frozen=True)
class Struck:
    """A fault that has been injected.

    Attributes:
        at: time of the fault, in seconds since 1970.
        host: the host of the fault; "" if no host has to be named.
        rank: the rank of the fault; None if it strikes more than one or none.
        cause: regular expression for the message that the run must print; "" if the run must not
            notice the fault.
        heal_after: seconds from `at` to `heal`.
    """

    at: float
    host: str
    rank: int | None
    cause: str
    heal: Callable[[], None] = nothing
    heal_after: float = 0.0


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        ends: True if the run must end, False if it must continue, None if both are right.
        sets_clock: True if the programs of the place must take their time from a clock that can
            be set. On slow hosts, libfaketime stalls waits of all programs.
    """

    title: str
    strike: Callable[[Training, random.Random], Struck]
    places: tuple[str, ...] = ("localhost", *TESTBED)
    ends: bool | None = False
    sets_clock: bool = False


def pick(training: Training, draw: random.Random, kind: str) -> Process:
    """Return a process of the run; for a supervisor, not the process that restarts it."""
    found = [one for one in training.processes() if one.kind == kind]
    parents = {one.parent for one in found}
    found = [one for one in found if one.pid not in parents]
    return draw.choice(sorted(found, key=lambda one: one.pid))


def signalled(
    kind: str, number: signal.Signals, cause: str, continued: bool = False
) -> Callable[[Training, random.Random], Struck]:
    """Send a signal to a process of a kind; with `continued`, send SIGCONT some time later."""

    def strike(training: Training, draw: random.Random) -> Struck:
        process = pick(training, draw, kind)
        heal = (lambda: process.signal(signal.SIGCONT)) if continued else nothing
        after = draw.uniform(*CUT_SECONDS) if continued else 0.0
        at = time.time()
        process.signal(number)
        return Struck(at, process.host, process.rank, cause, heal, after)

    return strike


def out_of_memory(training: Training, draw: random.Random) -> Struck:
    process = pick(training, draw, "rank")
    at = time.time()
    group = oom_kill(process)

    def heal() -> None:
        with contextlib.suppress(OSError):  # the file system is still in use
            group.rmdir()

    return Struck(at, process.host, process.rank, "out of memory", heal, 15.0)


def session_killed(training: Training, draw: random.Random) -> Struck:
    """Kill the SSH session in which mpirun started the ranks of a host that is not the head.

    The ranks and mpirun have connections of their own by then.

    Raises:
        NoTarget: the sessions of all hosts were killed before.
    """
    ranks = [process for process in training.processes() if process.kind == "rank"]
    ranks = sorted((rank for rank in ranks if rank.host != training.head), key=lambda r: r.pid)
    sessions = [(rank.host, pid) for rank in ranks if (pid := sshd_above(rank.pid)) is not None]
    if not sessions:
        raise NoTarget
    host, session = draw.choice(sessions)
    at = time.time()
    os.kill(session, signal.SIGKILL)
    return Struck(at, host, None, "")


def follower_sessions_killed(training: Training, _draw: random.Random) -> Struck:
    """Kill all SSH sessions on the head, through which the control node follows the run."""
    at = time.time()
    kill = "pkill -KILL -u ops '^sshd'"
    bed_of(training).bed.exec_(training.head, "sh", "-c", kill, check=True)
    return Struck(at, training.head, None, "")


def bed_of(training: Training) -> Hosts:
    assert isinstance(training.place, Hosts)
    return training.place


def lost_host(number: int) -> Callable[[Training, random.Random], Struck]:
    """Power off the head (0) or another host (1), and later power it on."""

    def strike(training: Training, draw: random.Random) -> Struck:
        bed = bed_of(training).bed
        host = training.head if number == 0 else draw.choice(training.place.hosts[1:])
        at = time.time()
        bed.kill(host)
        return Struck(
            at,
            host,
            None,
            "was lost|supervisor was killed|was started again",
            lambda: bed.boot(host),
            draw.uniform(*CUT_SECONDS),
        )

    return strike


def cut_off(training: Training, draw: random.Random) -> Struck:
    bed, host = bed_of(training).bed, draw.choice(training.place.hosts[1:])
    at = time.time()
    bed.cut(host)
    return Struck(at, host, None, "was lost", lambda: bed.heal(host), draw.uniform(*CUT_SECONDS))


def cut_apart(seconds: tuple[float, float]) -> Callable[[Training, random.Random], Struck]:
    """Cut the link between two hosts that both reach the head, for a random time."""

    def strike(training: Training, draw: random.Random) -> Struck:
        bed = bed_of(training).bed
        first, second = draw.sample(training.place.hosts[1:], 2)
        at = time.time()
        bed.cut(first, second)
        heal = lambda: bed.heal(first, second)  # noqa: E731
        cause = f"{first} cannot reach {second}|{second} cannot reach {first}"
        return Struck(at, "", None, cause, heal, draw.uniform(*seconds))

    return strike


def rotated_key(training: Training, draw: random.Random) -> Struck:
    """Give a host new SSH keys, which open connections do not notice, and end one of its ranks."""
    bed = bed_of(training).bed
    ranks = [process for process in training.processes() if process.kind == "rank"]
    rank = draw.choice(sorted((r for r in ranks if r.host != training.head), key=lambda r: r.pid))
    bed.exec_(rank.host, "sh", "-c", ROTATE_KEYS, check=True)
    at = time.time()
    rank.signal(signal.SIGKILL)
    heal = lambda: bed.exec_(rank.host, "sh", "-c", RESTORE_KEYS, check=True)  # noqa: E731
    return Struck(
        at, rank.host, None, "its host key has changed", heal,  # type: ignore[arg-type]
        draw.uniform(*CUT_SECONDS),
    )  # fmt: skip


NO_HEAD = """
table inet faults {{
  chain input {{ type filter hook input priority 0; ip saddr {address} drop; }}
}}
"""


def cut_from_control(training: Training, draw: random.Random) -> Struck:
    bed = bed_of(training).bed
    address = f"198.18.0.{10 + training.place.hosts.index(training.head)}"
    at = time.time()
    bed.run("nft", NO_HEAD.format(address=address), check=True)
    heal = lambda: bed.run("nft", "delete table inet faults")  # noqa: E731
    return Struck(at, training.head, None, "", heal, draw.uniform(*CUT_SECONDS))  # type: ignore[arg-type]


def control_gone(training: Training, _draw: random.Random) -> Struck:
    at = time.time()
    training.abandon()
    return Struck(at, "control node", None, "", training.attach, 3.0)


def second_run(training: Training, _draw: random.Random) -> Struck:
    at = time.time()
    done = training.place.run("train", *training.words, *training.place.launch)
    assert done.returncode == 1, done.stderr
    assert training.run in done.stderr, done.stderr
    return Struck(at, training.head, None, "")


def rebooted(number: int) -> Callable[[Training, random.Random], Struck]:
    """Reboot the head (0) or another host (1) in order: processes get SIGTERM first."""

    def strike(training: Training, draw: random.Random) -> Struck:
        bed = bed_of(training).bed
        host = training.head if number == 0 else draw.choice(training.place.hosts[1:])
        at = time.time()
        bed.exec_(host, "systemctl", "reboot", "--no-block")
        heal = lambda: bed.boot(host)  # noqa: E731  # waits until ssh answers
        return Struck(at, host, None, "is shutting down: systemd sent SIGTERM", heal, 20.0)

    return strike


def read_only(training: Training, draw: random.Random) -> Struck:
    """Mount the runs of rank 1's host read-only; that host also saves each checkpoint.

    Only the campaign's own log of samples, which no user's training writes, stays writable.
    """
    bed = bed_of(training).bed
    # a run that continues without a lost host has fewer hosts than the place
    host = next(one.host for one in training.processes() if (one.kind, one.rank) == ("rank", 1))
    runs = str(training.place.prefix / "runs")
    samples = f"{runs}/{training.run}/samples"
    at = time.time()
    for folder in (runs, samples):
        bed.exec_(host, "mount", "--bind", folder, folder, check=True)
    bed.exec_(host, "mount", "-o", "remount,ro,bind", runs, check=True)
    heal = lambda: bed.exec_(host, "umount", "--recursive", runs, check=True)  # noqa: E731
    cause = "no checkpoint of step .*Read-only file system"
    return Struck(at, host, None, cause, heal, draw.uniform(*CUT_SECONDS))


def loss(training: Training, draw: random.Random) -> Struck:
    bed, host = bed_of(training).bed, draw.choice(training.place.hosts)
    at = time.time()
    bed.lose(host, LOSS_PERCENT)
    return Struck(at, "", None, "", lambda: bed.lose(host, 0), draw.uniform(*CUT_SECONDS))


def delayed(training: Training, draw: random.Random) -> Struck:
    bed, host = bed_of(training).bed, draw.choice(training.place.hosts)
    at = time.time()
    bed.delay(host, DELAY_MS)
    return Struck(at, "", None, "", lambda: bed.delay(host, 0), draw.uniform(*CUT_SECONDS))


def install_clock(prefix: Path) -> None:
    """Make the Pythons of a stack on this machine use a clock that can be set."""
    [packages] = (prefix / "current" / "lib").glob("python3*/site-packages")
    code = CLOCK.format(seconds=STEP_SECONDS, flag=str(prefix / "clock"))
    (packages / "sitecustomize.py").write_text(code)


def clock_steps(training: Training, draw: random.Random) -> Struck:
    """Set the clock a minute forward, and back some time later."""
    flag = training.place.prefix / "clock"
    at = time.time()
    flag.touch()
    return Struck(at, "", None, "", flag.unlink, draw.uniform(*CUT_SECONDS))


def clock_jumps(number: int) -> Callable[[Training, random.Random], Struck]:
    """Set the clock of the head (0) or another host (1) ahead by an hour, and back again.

    HOST_CLOCK must have been run on the host before the training began.
    """

    def strike(training: Training, draw: random.Random) -> Struck:
        bed = bed_of(training).bed
        host = training.head if number == 0 else draw.choice(training.place.hosts[1:])

        def set_ahead(seconds: int) -> None:
            bed.exec_(host, "sh", "-c", f"echo +{seconds} > {OFFSET}", check=True)

        at = time.time()
        set_ahead(HOUR)
        return Struck(at, "", None, "", lambda: set_ahead(0), draw.uniform(*CUT_SECONDS))

    return strike


def rotated(training: Training, draw: random.Random) -> Struck:
    """Rename the logs while somebody follows them, as the supervisor does with full logs."""
    follower = training.place.start(
        "logs", "-f", training.run, log=training.folder / f"follower-{training.step()}.x"
    )
    time.sleep(draw.uniform(2, 5))
    at = time.time()
    folder = training.path(training.head)
    for log in (folder / "ranks.log", *folder.glob("logs/rank-*.log")):
        log.replace(log.with_name(f"{log.name}.1"))

    def heal() -> None:
        assert follower.poll() is None, "logs -f has ended at the rotation"
        follower.terminate()
        follower.wait()

    return Struck(at, "", None, "", heal, 10.0)


def full_of_logs(training: Training, _draw: random.Random) -> Struck:
    """Fill the disk completely, so that not even a line of a log can be written."""
    folder = training.path(training.head)
    assert os.path.ismount(folder.parent), "it would fill the disk of this machine"
    filler = folder.parent / "filler"
    at = time.time()
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    return Struck(at, "", None, "the disk of .* (is full|free)", filler.unlink, 30.0)


def full_disk(training: Training, _draw: random.Random) -> Struck:
    """Leave half of the space that a checkpoint needs."""
    folder = training.path(training.head)
    while not (found := list((folder / "checkpoints").glob("checkpoint-*[0-9]"))):
        time.sleep(0.2)  # until there is a checkpoint to measure
    assert os.path.ismount(folder.parent), "it would fill the disk of this machine"
    size = sum(path.stat().st_size for path in found[-1].rglob("*"))
    filler = folder.parent / "filler"
    at = time.time()
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - size // 2)
    return Struck(at, "", None, "the disk of .* (is full|free)", filler.unlink, 30.0)


def asked_to_end(kind: str) -> Callable[[Training, random.Random], Struck]:
    """Send SIGTERM, as spot instances, systemd and Slurm do."""

    def strike(training: Training, draw: random.Random) -> Struck:
        process = pick(training, draw, kind)
        at = time.time()
        process.signal(signal.SIGTERM)
        return Struck(at, process.host, None, "sent SIGTERM to (rank|the supervisor)")

    return strike


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
FAULTS = {
    "kill-rank": Fault("SIGKILL of a rank", signalled("rank", KILL, r"signal 9 \(SIGKILL\)")),
    "stop-rank": Fault("SIGSTOP of a rank", signalled("rank", STOP, r"stopped \(SIGSTOP\)")),
    "kill-mpirun": Fault("SIGKILL of mpirun", signalled("mpirun", KILL, "mpirun")),
    "stop-mpirun": Fault("SIGSTOP of mpirun, then SIGCONT", signalled("mpirun", STOP, "", True)),
    "kill-supervisor": Fault(
        "SIGKILL of the supervisor", signalled("supervisor", KILL, "supervisor")
    ),
    "stop-supervisor": Fault(
        "SIGSTOP of the supervisor, then SIGCONT",
        signalled("supervisor", STOP, "supervisor", True),
    ),
    "kill-guardian": Fault("SIGKILL of a guardian", signalled("guardian", KILL, "guardian")),
    "stop-guardian": Fault(
        "SIGSTOP of a guardian", signalled("guardian", STOP, "guardian|was lost")
    ),
    "term-rank": Fault("SIGTERM of a rank", asked_to_end("rank"), ends=True),
    "term-supervisor": Fault("SIGTERM of the supervisor", asked_to_end("supervisor"), ends=True),
    "oom": Fault("a rank is out of memory", out_of_memory),
    "control-gone": Fault("the control node vanishes, another one attaches", control_gone),
    "second-run": Fault("a second run on the same hosts", second_run),
    "full-disk": Fault("disk full during a checkpoint", full_disk, ("localhost",)),
    # near the last step the model cannot be saved, so the run ends
    "full-of-logs": Fault("disk full to the last byte", full_of_logs, ("localhost",), ends=None),
    "rotated": Fault("logs are rotated while somebody follows them", rotated),
    "clock-steps": Fault(
        "the clock goes a minute forward, then back", clock_steps, ("localhost",), sets_clock=True
    ),
    "kill-session": Fault(
        "SIGKILL of the SSH session with a host's ranks", session_killed, TESTBED
    ),
    "kill-followers": Fault(
        "SIGKILL of the control node's SSH sessions on the head", follower_sessions_killed, TESTBED
    ),
    "clock-jumps": Fault(
        "a host's clock jumps an hour ahead, then back", clock_jumps(1), TESTBED, sets_clock=True
    ),
    "head-clock-jumps": Fault(
        "the head's clock jumps an hour ahead, then back", clock_jumps(0), TESTBED, sets_clock=True
    ),
    "worker-off": Fault("a host loses its power, and is back", lost_host(1), TESTBED),
    "head-off": Fault("the head loses its power, and is back", lost_host(0), TESTBED),
    "worker-reboot": Fault("a host is rebooted", rebooted(1), TESTBED),
    "head-reboot": Fault("the head is rebooted", rebooted(0), TESTBED, ends=True),
    "read-only": Fault("a host's folder of runs becomes read-only", read_only, TESTBED),
    "cut-two": Fault("two hosts do not reach each other", cut_apart(CUT_SECONDS), TESTBED),
    "cut-two-long": Fault(
        "two hosts do not reach each other for over a minute", cut_apart(LONG_CUT_SECONDS), TESTBED
    ),
    # without an idle host, a run that needs all hosts ends and is resumed
    "rotated-key": Fault(
        "a host has a new SSH key, and a rank there is killed", rotated_key, TESTBED, ends=None
    ),
    "cut-all": Fault("a host is cut off from all others", cut_off, TESTBED),
    "cut-control": Fault("the control node does not reach the head", cut_from_control, TESTBED),
    "delay": Fault("a host's network has a delay of 200 ms", delayed, TESTBED),
    "loss": Fault("a host's network loses 2 % of its frames", loss, TESTBED),
}
