"""The supervisor's background process: one per run, restarted after it was killed.

The process is a systemd unit if possible. If root starts it, it is a system unit. Otherwise it is a
unit of the account, if the account's systemd continues after logout (`loginctl enable-linger`).
Without systemd a waiting process starts the supervisor as its child. Both processes have their own
sessions, and the run continues if one of them is killed. systemd may end both at logout
(KillUserProcesses in logind.conf), so the user gets a warning.

If the supervisor is stopped (SIGSTOP) for WATCHDOG_SECONDS, systemd's watchdog or the waiting
process kills and restarts it. The guardians have ended the run's ranks by then.

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
from ftcluster_train.io.shutdown import SYSTEMD

PID_FILE = "supervisor.pid"
BOOT_FILE = "supervisor.boot"  # id of the host's boot in which the supervisor ran
STOP_FILE = "stop"  # marks a run that must end, even if its supervisor was just killed
START_SECONDS = 20.0
LOOK_BYTES = 1 << 30  # memory limit for reading a run's files
BACK_SECONDS = 5.0  # longest time until a killed supervisor runs again
PAUSE_SECONDS = 1.0  # before a killed supervisor is restarted
LOGGED = {  # events that are copied to the host's log
    "error": syslog.LOG_ERR, "restart": syslog.LOG_WARNING, "notice": syslog.LOG_NOTICE,
    "end": syslog.LOG_NOTICE,
}  # fmt: skip
LOOK_SECONDS = 0.2  # between two checks of whether the supervisor has ended or is suspended
SPACE_SECONDS = 600.0  # longest wait for the disk space that events and a launch need
# A silent supervisor is killed after this time. The guardians end their ranks earlier, see
# `Timeouts.supervisor`.
WATCHDOG_SECONDS = 20.0
# Longest time that a reboot waits for a run; only `ftcluster stop` uses the run's grace time.
STOP_SECONDS = 120
MOST_TASKS = "50%"  # of the host's task limit; systemd's default of 15 % is low for many ranks
NOTIFY_SOCKET = "NOTIFY_SOCKET"  # variable that systemd sets, sd_notify(3)
LINGER = Path("/var/lib/systemd/linger")
# limits that the role tuning writes; PAM applies them to sessions, but systemd ignores them
LIMITS = Path("/etc/security/limits.d/ftcluster.conf")
UNIT_LIMITS = {"nofile": "LimitNOFILE", "memlock": "LimitMEMLOCK"}


def supervisor_of(run_dir: Path) -> int | None:
    """Return the process id of a run's supervisor, or None if it is not alive."""
    try:
        pid = int((run_dir / PID_FILE).read_text(encoding="ascii"))
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(run_dir) in arguments else None  # another process may have the id


def is_supervised(run_dir: Path) -> bool:
    """Return True if a run has a supervisor, or has ended and needs none."""
    return has_ended(run_dir) or supervisor_of(run_dir) is not None


def wait_for_supervisor(run_dir: Path) -> bool:
    """Wait until a new supervisor runs; return False if that takes more than START_SECONDS."""
    deadline = time.monotonic() + START_SECONDS
    while not is_supervised(run_dir):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class NoUnit(Exception):
    """The reason why the supervisor cannot be a systemd unit; "" if systemd does not run here."""


def as_account(user: str, call: Callable[[], int]) -> int:
    """Call a function as an account, in a separate process; return the function's result.

    root must not read the account's files itself: a link may lead anywhere, and a FIFO may block.
    The process gets LOOK_BYTES of memory, because a file may have any size.

    Args:
        user: name of the account; "" calls the function in this process.

    Raises:
        TrainError: the process was killed, or was still running after START_SECONDS + BACK_SECONDS.
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
        except BaseException as error:  # the parent's code must not continue in the child
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
        f"reading the run's files as {user} took more than {START_SECONDS + BACK_SECONDS:g} s"
    )


def start_unit(run_dir: Path, user: str) -> None:
    """Start a run's supervisor as a unit of systemd.

    Args:
        user: account that the supervisor runs as if root starts it; "" for the current account.

    Raises:
        NoUnit: the supervisor cannot be a systemd unit.
    """
    # a unit would not belong to the Slurm job, so it would not end with the job
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
    """Return the name of this process's account."""
    return pwd.getpwuid(os.geteuid()).pw_name


def say_why_no_unit(run_dir: Path, why: str) -> None:
    """Log why the supervisor is not a systemd unit, and warn if a logout may end it."""
    print(f"the supervisor is not a systemd unit: {why}", flush=True)
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
    """Return the command that starts a run's supervisor as a systemd unit.

    Args:
        user: account that the supervisor runs as; "" for the calling account.
        system: True for a system unit, False for a unit of the account.
    """
    properties = [
        "WorkingDirectory=/",  # Python imports from this folder, so no other user may own it
        "Restart=on-abnormal",  # after a signal, not after an exit code
        f"RestartSec={PAUSE_SECONDS:g}",
        f"WatchdogSec={WATCHDOG_SECONDS:g}",
        "WatchdogSignal=SIGKILL",  # a stopped process handles any other signal only after SIGCONT
        "KillMode=mixed",  # only the supervisor gets SIGTERM
        f"TimeoutStopSec={STOP_SECONDS}",
        "NoNewPrivileges=yes",
        "OOMPolicy=continue",  # a rank that is out of memory does not end the supervisor
        f"TasksMax={MOST_TASKS}",
        # the files that PAM reads for a session
        "EnvironmentFile=-/etc/environment",
        "EnvironmentFile=-/etc/default/locale",
    ]
    if system:  # at a reboot the unit ends while it can still reach the other hosts
        properties.append("After=network.target")
    for fields in map(str.split, limits.splitlines()):
        if len(fields) == 4 and fields[0] == user and fields[2] in UNIT_LIMITS:
            value = {"unlimited": "infinity"}.get(fields[3], fields[3])
            kib = "K" if fields[2] == "memlock" and value.isdecimal() else ""
            properties.append(f"{UNIT_LIMITS[fields[2]]}={value}{kib}")
    cache = run_dir.parents[1] / "cache"  # the account cannot write to the stack
    return (
        "systemd-run",
        *(() if system else ("--user",)),
        "--quiet",
        "--collect",
        f"--unit=ftcluster-{run_dir.name}",
        *((f"--uid={user}", f"--setenv=PYTHONPYCACHEPREFIX={cache}") if user else ()),
        *(f"--property={setting}" for setting in properties),
        python, "-m", "ftcluster_train.host.supervisor", "supervise", str(run_dir),
    )  # fmt: skip


def detach() -> bool:
    """Fork a background process; return False in this process and True in each supervisor."""
    if os.fork():
        return False
    os.setsid()
    os.chdir("/")  # the caller's folder may be removed later, and mpirun needs one that exists
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # the caller waits until these are closed
        os.dup2(null, descriptor)
    while pid := os.fork():
        if not was_killed(pid):
            os._exit(0)
        time.sleep(PAUSE_SECONDS)
    return True


def was_killed(pid: int) -> bool:
    """Wait for the end of a child; kill it if it is stopped for WATCHDOG_SECONDS.

    Returns:
        True if a signal ended the child.
    """
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
    """Return an id that changes with each boot of the host, or with each start of a container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    started = str(process_state(1).get("start", ""))
    return f"{boot} {started}"


def was_rebooted(run_dir: Path) -> bool:
    """Return True if this host has rebooted since a run's last supervisor; store the boot's id."""
    file = run_dir / BOOT_FILE
    before = file.read_text(encoding="ascii").strip() if file.is_file() else ""
    with contextlib.suppress(OSError):  # disk full
        write_atomically(file, f"{this_boot()}\n")
    return before not in ("", this_boot())


def log_event(run: str, event: str, fields: Mapping[str, Any]) -> None:
    """Write an event to the host's own log, where operators look: `journalctl -u ftcluster-RUN`."""
    if event not in LOGGED:
        return
    text = fields.get("message") or ", ".join(f"{name} {value}" for name, value in fields.items())
    where = f"rank {fields['rank']} on {fields['host']}: " if fields.get("rank") is not None else ""
    syslog.openlog("ftcluster", syslog.LOG_PID, syslog.LOG_USER)
    for number, line in enumerate(str(text).splitlines()):
        syslog.syslog(LOGGED[event], f"{run}: {event}: {where if not number else '  '}{line}")


def wait_for_space(run_dir: Path) -> None:
    """Wait while a run's disk is completely full, because no event could be recorded.

    Call this only while the run has no ranks: the supervisor cannot watch ranks while it waits.
    """
    deadline, is_logged = time.monotonic() + SPACE_SECONDS, False
    while not has_space(run_dir) and time.monotonic() < deadline:
        if not is_logged:
            message = f"the disk, quota or inodes of {run_dir} are used up: waiting for space"
            log_event(run_dir.name, "notice", {"message": message})
        is_logged = True
        time.sleep(LOOK_SECONDS)


def is_stopped(pid: int) -> bool:
    """Return True if a process is stopped (by SIGSTOP or a debugger)."""
    return process_state(pid).get("state", "") in ("T", "t")


def feed_watchdog() -> None:
    """Start sending watchdog notifications to systemd; do nothing if systemd expects none."""
    address = os.environ.pop(NOTIFY_SOCKET, "")  # child processes must send none
    if not address:
        return

    def feed() -> None:
        path = f"\0{address[1:]}" if address.startswith("@") else address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            while True:
                with contextlib.suppress(OSError):  # systemd is being restarted
                    notify.sendto(b"WATCHDOG=1", path)
                time.sleep(WATCHDOG_SECONDS / 4)

    threading.Thread(target=feed, daemon=True).start()


def become_supervisor(run_dir: Path) -> bool:
    """Make this process the run's supervisor, or end it if the run has another supervisor.

    Returns:
        True if this supervisor replaces a killed one.
    """
    os.umask(GROUP_READS)
    lock = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)  # locked until this process ends
    if not try_lock(lock, EXCLUSIVE):
        os._exit(0)
    log = os.open(run_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return (run_dir / PID_FILE).exists()
