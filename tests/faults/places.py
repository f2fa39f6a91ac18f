"""The places of trainings: this machine, or three hosts of the testbed."""

import os
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.cluster import PREFIX
from tests.cluster.control import Control
from tests.programs import FTCLUSTER, Home
from tests.testbed import host as testbed_host

SECONDS = 600


@dataclass(frozen=True)
class Command:
    """A command of the control node: its arguments, its whole environment and its folder."""

    argv: list[str]
    env: dict[str, str]
    folder: Path


class Place(ABC):
    """A cluster that is set up.

    Attributes:
        name: localhost or hosts.
        hosts: names of its hosts, the head first.
        launch: options of `ftcluster train` that select hosts and ranks.
        patience_seconds: longest time without a step, an error or an end, after a fault was undone.
    """

    name: str
    hosts: tuple[str, ...]
    prefix: Path
    launch: tuple[str, ...]
    patience_seconds = 150.0

    @abstractmethod
    def command(self, *arguments: str) -> Command:
        """Return a `ftcluster` command with these arguments, as its user calls it."""

    @abstractmethod
    def init(self, host: str) -> int | None:
        """Return a process that sees the host like the host's processes; None while it is off."""

    def path(self, host: str, path: Path) -> Path:
        """Return the path on this machine of a file of a host.

        Raises:
            FileNotFoundError: the host is off.
        """
        init = self.init(host)
        if init is None:
            raise FileNotFoundError(f"{host} is off")
        return Path(f"/proc/{init}/root") / path.relative_to("/")

    def start(self, *arguments: str, log: Path) -> "subprocess.Popen[bytes]":
        """Start `ftcluster`; its stdout goes to `log`.out, its stderr to `log`.err."""
        one = self.command(*arguments)
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
            return subprocess.Popen(
                one.argv, env=one.env, cwd=one.folder, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `ftcluster` to its end."""
        one = self.command(*arguments)
        return subprocess.run(
            one.argv, env=one.env, cwd=one.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip


LOGGED = {"FTCLUSTER_LOG_SAMPLES": "1"}


class Localhost(Place):
    """This machine, with two ranks."""

    name, hosts, launch = "localhost", ("localhost",), ("--ranks-per-host", "2")

    def __init__(self, home: Home) -> None:
        self._home, self.prefix = home, home.prefix

    def command(self, *arguments: str) -> Command:
        return Command([str(FTCLUSTER), *arguments], self._home.env | LOGGED, self._home.folder)

    def init(self, _host: str) -> int:
        return os.getpid()


class Hosts(Place):
    """Hosts of the testbed: three with one rank each, or four."""

    prefix = Path(PREFIX)

    def __init__(self, control: Control, name: str = "hosts", ranks_per_host: int = 1) -> None:
        self.control, self.bed = control, control.bed
        self.name, self.hosts = name, control.hosts
        self.launch = ("--ranks-per-host", str(ranks_per_host))
        # all hosts import torch with the cores of one machine
        self.patience_seconds *= ranks_per_host

    def command(self, *arguments: str) -> Command:
        argv = self.bed.run_argv([str(FTCLUSTER), *arguments])
        return Command(argv, {**os.environ, **self.control.env, **LOGGED}, self.control.folder)

    def init(self, host: str) -> int | None:
        settings = self.bed.wanted.recorded()
        assert settings
        pid = testbed_host.init_pid(settings.node(host))
        return None if pid is None else int(pid)
