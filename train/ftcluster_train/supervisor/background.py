"""The supervisor's process: one a run, in the background, started again when it was killed.

It is a unit of systemd where there is one: of the system where root starts it, else of the account
if its own systemd outlives its logins (`loginctl enable-linger`). Elsewhere it is the child of a
process that waits for it, in a session of their own; killing either of them does not end the run.
systemd may do so at logout (KillUserProcesses in logind.conf), which is said.

One that is stopped (SIGSTOP) is killed after WATCHDOG_SECONDS, by systemd's watchdog or by that
other process, and so started again: its ranks have ended by then.

Standard library only.
"""

import contextlib
import os
import pwd
import resource
import signal
import socket
import subprocess
import sys
import syslog
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftcluster_common.protocol.launch import SLURM_VARIABLE
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.io.activity import process_state
from ftcluster_train.io.events import EventWriter, has_ended
from ftcluster_train.io.fsync import GROUP_READS, has_space, write_atomically
from ftcluster_train.io.locks import EXCLUSIVE, try_lock

PID_FILE = "supervisor.pid"
BOOT_FILE = "supervisor.boot"  # of which start of the host the supervisor was
STOP_FILE = "stop"  # the run is to end, also if its supervisor was just killed
START_SECONDS = 20.0
LOOK_BYTES = 1 << 30  # of memory, to look at a run's files
BACK_SECONDS = 5.0  # a killed supervisor is back after this long
PAUSE_SECONDS = 1.0  # before it is started again
LOGGED = {  # events that the host's log gets
    "error": syslog.LOG_ERR, "restart": syslog.LOG_WARNING, "notice": syslog.LOG_NOTICE,
    "end": syslog.LOG_NOTICE,
}  # fmt: skip
LOOK_SECONDS = 0.2  # between two looks whether it has ended or is stopped
SPACE_SECONDS = 600.0  # how long to wait for what events and a launch need
# without a sign of life; the guardians have ended their ranks before, see `Timeouts.supervisor`
WATCHDOG_SECONDS = 20.0
# A reboot waits so long for a run, whose own grace time only `ftcluster stop` knows.
STOP_SECONDS = 120
MOST_TASKS = "50%"  # of the system's; its default, 15 %, may be too low for many ranks
NOTIFY_SOCKET = "NOTIFY_SOCKET"  # systemd's, sd_notify(3)
SYSTEMD = Path("/run/systemd/system")  # is there if systemd runs this host, sd_booted(3)
LINGER = Path("/var/lib/systemd/linger")
# of the role tuning; PAM reads it, units do not
LIMITS = Path("/etc/security/limits.d/ftcluster.conf")
UNIT_LIMITS = {"nofile": "LimitNOFILE", "memlock": "LimitMEMLOCK"}


def supervisor_of(run_dir: Path) -> int | None:
    """The process id of a run's supervisor, if it is alive."""
    try:
        pid = int((run_dir / PID_FILE).read_text(encoding="ascii"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(run_dir) in words else None  # else the number is another process's


def is_supervised(run_dir: Path) -> bool:
    """Whether a run needs no supervisor any more, or has one."""
    return has_ended(run_dir) or supervisor_of(run_dir) is not None


def wait_for_supervisor(run_dir: Path) -> bool:
    """Wait for a supervisor that was started; returns whether it is there."""
    deadline = time.monotonic() + START_SECONDS
    while not is_supervised(run_dir):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class NoUnit(Exception):
    """Why the supervisor cannot be a unit of systemd; "" where systemd does not run this host."""


def as_account(user: str, call: Callable[[], int]) -> int:
    """Call a function as an account, in a process of its own; returns what it returns.

    root reads no file of the account: a link may lead anywhere, and a FIFO has no end. That process
    has LOOK_BYTES of memory, because a file may have any size.

    Args:
        user: the account; "" calls the function in this process.

    Raises:
        TrainError: it was killed, or had to be after START_SECONDS + BACK_SECONDS.
    """
    if not user:
        return call()
    entry = pwd.getpwnam(user)
    sys.stdout.flush()
    sys.stderr.flush()
    if not (pid := os.fork()):
        try:
            os.setgroups(os.getgrouplist(user, entry.pw_gid))
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            resource.setrlimit(resource.RLIMIT_AS, (LOOK_BYTES, LOOK_BYTES))
            code = call()
            sys.stderr.flush()
            os._exit(code)
        except MemoryError:
            os.write(2, f"a file of the run has more than {LOOK_BYTES >> 20} MiB\n".encode())
            os._exit(1)
        except BaseException as error:  # what the process forked from must not go on here
            os.write(2, f"{first_line(error)}\n".encode())
            os._exit(1)
    deadline = time.monotonic() + START_SECONDS + BACK_SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done and os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        if done:
            raise TrainError(f"a process of {user} was ended by signal {os.WTERMSIG(status)}")
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TrainError(
        f"{user} cannot read the run's files within {START_SECONDS + BACK_SECONDS:g} s"
    )


def start_unit(run_dir: Path, user: str) -> None:
    """Start a run's supervisor as a unit of systemd.

    Args:
        user: the account that it runs as where root starts it; "" for this one.

    Raises:
        NoUnit: it cannot be one.
    """
    # the unit would not belong to the Slurm job, and so not be ended with it
    if not SYSTEMD.is_dir() or SLURM_VARIABLE in os.environ:
        raise NoUnit
    root, account = os.geteuid() == 0, own_account()
    if not (root or (LINGER / account).exists()):
        raise NoUnit(f"lingering is off for {account}: sudo loginctl enable-linger {account}")
    limits = LIMITS.read_text(encoding="utf-8") if LIMITS.is_file() else ""
    command = unit_command(run_dir, sys.executable, user, root, limits)
    environment = {**os.environ, "XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=START_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoUnit(first_line(error)) from None
    if done.returncode:
        raise NoUnit(done.stderr.decode(errors="replace").strip())


def own_account() -> str:
    """The name of this process's account."""
    return pwd.getpwuid(os.geteuid()).pw_name


def say_why_no_unit(run_dir: Path, why: str) -> None:
    """Say in the supervisor's log why it is no unit of systemd, and whether logout ends it."""
    print(f"no unit of systemd: {why}", flush=True)
    logind = "org.freedesktop.login1"
    command = ("busctl", "get-property", logind, f"/{logind.replace('.', '/')}")
    try:
        done = subprocess.run(
            (*command, f"{logind}.Manager", "KillUserProcesses"), stdin=subprocess.DEVNULL,
            capture_output=True, timeout=START_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.stdout.strip() == b"b true":
        account = own_account()
        message = (
            f"systemd may end this run when the last login of {account} ends (KillUserProcesses in "
            f"logind.conf): on the head, sudo loginctl enable-linger {account}"
        )
        EventWriter(run_dir).write("notice", message=message)


def unit_command(
    run_dir: Path, python: str, user: str, system: bool, limits: str = ""
) -> Sequence[str]:
    """The command that starts a run's supervisor as a unit of systemd.

    Args:
        user: the account that it runs as; "" for the one that calls it.
        system: whether it is a unit of the system, and not of the account.
    """
    properties = [
        "WorkingDirectory=/",  # Python imports from it, and another user may own it
        "Restart=on-abnormal",  # after a signal, not after an exit code
        f"RestartSec={PAUSE_SECONDS:g}",
        f"WatchdogSec={WATCHDOG_SECONDS:g}",
        "WatchdogSignal=SIGKILL",  # any other one waits for SIGCONT
        "KillMode=mixed",  # SIGTERM is the supervisor's to handle
        f"TimeoutStopSec={STOP_SECONDS}",
        "NoNewPrivileges=yes",
        "OOMPolicy=continue",  # a rank that is out of memory does not end the supervisor
        f"TasksMax={MOST_TASKS}",
        # what PAM gives to a session
        "EnvironmentFile=-/etc/environment",
        "EnvironmentFile=-/etc/default/locale",
    ]
    if system:  # at a reboot it is ended while it still reaches the other hosts
        properties.append("After=network.target")
    for words in map(str.split, limits.splitlines()):
        if len(words) == 4 and words[0] == user and words[2] in UNIT_LIMITS:
            value = {"unlimited": "infinity"}.get(words[3], words[3])
            kib = "K" if words[2] == "memlock" and value.isdecimal() else ""
            properties.append(f"{UNIT_LIMITS[words[2]]}={value}{kib}")
    cache = run_dir.parents[1] / "cache"  # the stack is not the account's to write
    return (
        "systemd-run",
        *(() if system else ("--user",)),
        "--quiet",
        "--collect",
        f"--unit=ftcluster-{run_dir.name}",
        *((f"--uid={user}", f"--setenv=PYTHONPYCACHEPREFIX={cache}") if user else ()),
        *(f"--property={one}" for one in properties),
        python, "-m", "ftcluster_train.host.supervisor", "supervise", str(run_dir),
    )  # fmt: skip


def detach() -> bool:
    """Go to the background; returns False in this process, and True in each supervisor."""
    if os.fork():
        return False
    os.setsid()
    os.chdir("/")  # the caller's may be removed when it has ended, and mpirun needs one
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # the caller waits until they are closed
        os.dup2(null, descriptor)
    while pid := os.fork():
        if not was_killed(pid):
            os._exit(0)
        time.sleep(PAUSE_SECONDS)
    return True


def was_killed(pid: int) -> bool:
    """Wait for the end of a child, which is killed once it is stopped for WATCHDOG_SECONDS."""
    stopped = 0.0
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.WIFSIGNALED(status)
        stopped = stopped + LOOK_SECONDS if is_stopped(pid) else 0.0
        if stopped > WATCHDOG_SECONDS:
            os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def this_boot() -> str:
    """Which start of this host it is; of a container, of its process 1."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    started = str(process_state(1).get("start", ""))
    return f"{boot} {started}"


def was_rebooted(run_dir: Path) -> bool:
    """Whether this host was started since a run's last supervisor; remembers this start."""
    file = run_dir / BOOT_FILE
    before = file.read_text(encoding="ascii").strip() if file.is_file() else ""
    with contextlib.suppress(OSError):  # disk full
        write_atomically(file, f"{this_boot()}\n")
    return before not in ("", this_boot())


def log_event(run: str, event: str, fields: Mapping[str, Any]) -> None:
    """Tell the host's own log what an operator looks for there: `journalctl -u ftcluster-RUN`."""
    if event not in LOGGED:
        return
    said = fields.get("message") or ", ".join(f"{name} {value}" for name, value in fields.items())
    where = f"rank {fields['rank']} on {fields['host']}: " if fields.get("rank") is not None else ""
    syslog.openlog("ftcluster", syslog.LOG_PID, syslog.LOG_USER)
    for number, line in enumerate(str(said).splitlines()):
        syslog.syslog(LOGGED[event], f"{run}: {event}: {where if not number else '  '}{line}")


def wait_for_space(run_dir: Path) -> None:
    """Wait while a run's disk is full to the last: its end, or its restart, would be lost.

    For the supervisor while it has no ranks: theirs would miss it.
    """
    deadline, said = time.monotonic() + SPACE_SECONDS, False
    while not has_space(run_dir) and time.monotonic() < deadline:
        if not said:
            message = f"the disk of {run_dir} is full, or its quota or inodes: waiting for space"
            log_event(run_dir.name, "notice", {"message": message})
        said = True
        time.sleep(LOOK_SECONDS)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP, or by a debugger)."""
    return process_state(pid).get("state", "") in ("T", "t")


def feed_watchdog() -> None:
    """Give systemd a sign of life from now on; nothing where it wants none."""
    address = os.environ.pop(NOTIFY_SOCKET, "")  # programs that this process starts send none
    if not address:
        return

    def feed() -> None:
        path = f"\0{address[1:]}" if address.startswith("@") else address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            while True:
                with contextlib.suppress(OSError):  # systemd is being started anew
                    notify.sendto(b"WATCHDOG=1", path)
                time.sleep(WATCHDOG_SECONDS / 4)

    threading.Thread(target=feed, daemon=True).start()


def become_supervisor(run_dir: Path) -> bool:
    """Make this process the run's supervisor, and end it where there is another one.

    Returns:
        Whether it follows one that was killed.
    """
    os.umask(GROUP_READS)
    lock = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)  # until this process ends
    if not try_lock(lock, EXCLUSIVE):
        os._exit(0)
    log = os.open(run_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return (run_dir / PID_FILE).exists()
