"""Commands with secrets that are killed at random moments, and the remaining traces of the secrets.

With FTCLUSTER_TEST_EXAMPLES=N, N commands are killed, at other moments each time.
"""

import base64
import ctypes
import json
import os
import random
import re
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pexpect

from tests.cluster.conftest import Machine
from tests.conftest import MORE
from tests.programs import CACHE, FTCLUSTER, Home, wait_for

ENDS = Path(__file__).with_name("scripts") / "ends.py"
SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL)
KILLS = 6
RANKS_RUN = "rank 0 is here now"
# lines of a command's output, one for each step
RUN_LINES, SETUP_LINES = 11, 6
SECONDS = 200
SHM_RDONLY = 0o10000  # Linux, include/uapi/linux/shm.h
# By design, two files have mode 0600: the environment of the ranks, and the user's request.
KEEP_ARGUMENTS = re.compile(r".*/runs/ends-[^/]+/job\.json|.*/state/ftcluster/runs/[^/]+/run\.json")


@dataclass(frozen=True)
class Secrets:
    """A secret for each way to pass secrets to a command."""

    become: str = field(default_factory=lambda: f"become{secrets.token_hex(12)}")
    hub: str = field(default_factory=lambda: f"hf_{secrets.token_hex(12)}")
    argument: str = field(default_factory=lambda: f"argument{secrets.token_hex(12)}")
    variable: str = field(default_factory=lambda: f"variable{secrets.token_hex(12)}")

    def named(self, content: bytes) -> set[str]:
        """Return the secrets that the memory contains: plain, in hexadecimal or in base64."""
        return {
            door
            for door, secret in vars(self).items()
            if any(form in content for form in forms(secret.encode()))
        }


def forms(secret: bytes) -> list[bytes]:
    # base64 of a longer text contains the secret at one of three alignments
    parts = [
        base64.b64encode(b"x" * before + secret)[4 if before else 0 : -4] for before in (0, 1, 2)
    ]
    return [secret, secret.hex().encode(), *parts]


@dataclass(frozen=True)
class Kill:
    """A command and the moment of its kill: a number of lines, and a fraction of a second."""

    verb: str
    lines: int
    seconds: float
    number: signal.Signals

    def __str__(self) -> str:
        return f"{self.verb}, {self.number.name} {self.seconds:.2f} s after line {self.lines}"


def kills(seed: int, count: int) -> Iterator[Kill]:
    """Yield equally many kills for each signal; half the commands are runs, a third have ranks."""
    drawn = random.Random(seed)
    for number in range(count):
        verb = "setup" if number % 2 else "run"
        lines = drawn.randint(0, SETUP_LINES if number % 2 else RUN_LINES)
        if verb == "run" and number % 3 == 0:
            lines = -1  # -1: when a rank has printed something
        yield Kill(verb, lines, drawn.uniform(0, 0.6), SIGNALS[(number + number // 6) % 3])


def start_and_kill(machine: Machine, planted: Secrets, kill: Kill, temporary: Path) -> None:
    home = machine.home
    words = ["-K", "-e", f"site_password={planted.variable}"]
    if kill.verb == "setup":
        words += ["-e", f"ftcluster_prefix={home.prefix}", "localhost"]
    else:
        words += ["--hf-token", "--share-hosts", "--ranks-per-host", "1"]
        words += ["--", str(ENDS), "0", "9", planted.argument]
    process = pexpect.spawn(
        str(FTCLUSTER), [kill.verb, *words], cwd=str(home.folder), timeout=SECONDS,
        env={**home.env, "HF_TOKEN": planted.hub, "TMPDIR": str(temporary)}, encoding="utf-8",
    )  # fmt: skip
    process.expect("BECOME password: ")
    process.sendline(planted.become)
    for _ in range(kill.lines):
        if process.expect(["\n", pexpect.EOF, RANKS_RUN]) == 2:  # these commands print nothing more
            break
    if kill.lines < 0:
        process.expect(RANKS_RUN)
    time.sleep(kill.seconds)
    process.kill(kill.number)
    process.expect(pexpect.EOF)
    process.close()


def files_since(start: float, home: Home) -> Iterator[Path]:
    """Return files that changed since a time, where ftcluster, Ansible or ranks write."""
    shared = [Path("/dev/shm"), Path(os.environ.get("XDG_RUNTIME_DIR") or "/dev/shm")]
    folders = [home.folder, CACHE / "ftcluster", *shared]
    folders += [one for name in ("ftcluster*", "ansible*") for one in Path("/tmp").glob(name)]
    for top in folders:
        for folder, _, names in os.walk(top):
            for path in (Path(folder, name) for name in names):
                try:
                    if path.is_file() and not path.is_symlink() and path.stat().st_ctime >= start:
                        yield path
                except OSError:
                    continue  # the file belonged to another process, which has removed it


def segments() -> Iterator[tuple[str, bytes]]:
    """Return the System V shared memory segments."""
    system = ctypes.CDLL(None)
    system.shmat.restype = ctypes.c_void_p
    system.shmdt.argtypes = [ctypes.c_void_p]
    for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        number, size = int(line.split()[1]), int(line.split()[3])
        where = system.shmat(number, None, SHM_RDONLY)
        if where != ctypes.c_void_p(-1).value:
            yield f"shared memory {number}", ctypes.string_at(where, size)
            system.shmdt(where)


def processes() -> Iterator[tuple[str, bytes]]:
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                yield f"{folder}/{name}", (folder / name).read_bytes()
            except OSError:
                continue  # the process has ended


def test_a_killed_command_leaves_no_secret(machine: Machine) -> None:
    home, start = machine.home, time.time() - 1  # the kernel's clock for files is a little behind
    seed = random.SystemRandom().randrange(10**6) if MORE else 30  # inside a launch, too
    print(f"seed {seed}")
    temporary = home.folder / "temporary"
    temporary.mkdir(exist_ok=True)
    planted = {}
    for number, kill in enumerate(kills(seed, MORE or KILLS)):
        print(number, kill, flush=True)
        planted[f"{number}, {kill}"] = own = Secrets()
        start_and_kill(machine, own, kill, temporary)
    listed = home.run("ps", "--json")  # the next command removes the remains
    assert listed.returncode == 0, listed.stderr
    running = [one["run"] for one in json.loads(listed.stdout) if one["state"] == "running"]
    assert running, "else no rank was running as its command was killed"
    stopped = home.run("stop", *running)
    assert stopped.returncode == 0, stopped.stderr
    wait_for(lambda: home.left_running() == [], SECONDS)
    read = [(str(path), path.read_bytes()) for path in files_since(start, home)]
    assert any(KEEP_ARGUMENTS.fullmatch(path) for path, _ in read), "else nothing was looked at"
    found = {
        f"{path}: {door} of {which}"
        for path, content in [*read, *segments(), *processes()]
        for which, own in planted.items()
        for door in own.named(content)
        if not (door == "argument" and KEEP_ARGUMENTS.fullmatch(path) and is_private(path))
    }
    assert found == set()


def is_private(path: str) -> bool:
    return Path(path).stat().st_mode & 0o777 == 0o600
