"""Running the installed programs as a user does."""

import os
import pty
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTROL = ROOT / ".venv" / "bin"
FTCLUSTER = CONTROL / "ftcluster"
HANG_SECONDS = 900  # a program that takes longer counts as hung: no test depends on speed
# for a Python that finds the hosts' package in the checkout
NODE_PATH = f"{ROOT / 'train'}{os.pathsep}{ROOT / 'common'}"
# Downloads of tests are kept here between runs, separate from the user's cache.
CACHE = ROOT / ".test_cache"
# installed by scripts/testbed-packages
PROMTOOL = shutil.which("promtool") or str(CACHE / "promtool")


@dataclass(frozen=True)
class Home:
    """A user's home, separate from the real home; it has the same pip settings."""

    folder: Path
    prefix: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config"),
            "XDG_CACHE_HOME": str(CACHE),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "HF_HOME": str(self.folder / "hf"),
            "PYTHONDONTWRITEBYTECODE": "",  # otherwise all imported files would be compiled again
        }

    def run(self, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(FTCLUSTER), *arguments],
            env={**self.env, **changes},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(FTCLUSTER), *arguments],
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left_running(self) -> list[str]:
        """Return command lines of processes that name this home's folder or prefix."""
        marks = [str(self.folder).encode(), str(self.prefix).encode()]
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            if int(folder.name) == os.getpid():
                continue
            try:
                text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            except OSError:
                continue
            if any(mark in text for mark in marks) and b"pytest" not in text.split(b"\0")[0]:
                found.append(text.split(b"\0\0")[0].replace(b"\0", b" ").decode()[:200])
        return found


class Terminal:
    """A command of a user at a terminal.

    Attributes:
        pid: the id of the program's process.
        text: the output so far.
    """

    def __init__(self, home: Home, *arguments: str) -> None:
        self.pid, self._terminal = pty.fork()
        if not self.pid:
            os.chdir(home.folder)
            os.execve(FTCLUSTER, ["ftcluster", *arguments], {**home.env, "TERM": "dumb"})
        self.text = ""

    def read_until(self, end: str, seconds: float = 120) -> str:
        """Return the output up to a match of a regular expression."""
        before, deadline = len(self.text), time.monotonic() + seconds
        while not re.search(rf"(?:{end})\Z", self.text[before:]):
            ready, _, _ = select.select([self._terminal], [], [], deadline - time.monotonic())
            assert ready, self.text
            self.text += os.read(self._terminal, 4096).decode()
        return self.text[before:]

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait(self) -> int:
        """Return the exit code of the program, which is negative for a signal."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._terminal)
        return code


def free_ports(count: int) -> list[int]:
    """Return ports that are free and that the kernel does not use for outgoing connections."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    # libraries seed the other generator equally in all test processes
    numbers = random.SystemRandom()
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = numbers.randrange(10_000, max(int(given[0]), 20_000))
            with suppress(OSError):
                stack.enter_context(socket.create_server(("", port)))
                found.append(port)
    return found


def wait_for(is_there: Callable[[], object], seconds: float = HANG_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.03)


def interrupt_when(process: "subprocess.Popen[str]", mark: str) -> tuple[str, str, int, str]:
    """Send SIGINT at a line with `mark`; return (stderr, its last line, exit code, stdout)."""
    assert process.stderr is not None
    seen = []
    deadline = time.monotonic() + HANG_SECONDS
    for line in process.stderr:
        seen.append(line)
        if mark in line:
            process.send_signal(signal.SIGINT)
            break
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError("".join(seen))
    else:
        raise AssertionError(f"ended before '{mark}':\n" + "".join(seen))
    out, rest = process.communicate(timeout=120)
    text = "".join(seen) + rest
    return text, text.strip().splitlines()[-1], process.returncode, out
