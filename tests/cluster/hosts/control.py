"""The control node of several real hosts: it sets them up as a user does."""

import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.programs import CACHE, CONTROL, FTCLUSTER
from tests.testbed import Testbed

SECONDS = 1200
# What setup may change on a host, as text. Left out: backups that useradd makes, and what Ansible
# itself and apt leave behind.
SNAPSHOT = r"""
dpkg-query -W -f '${Package} ${Version}\n'
getent passwd; getent group
systemctl list-unit-files --no-legend | sort
ls -A /opt /var/lib /home | grep -v '^$'
find /home/ops -path /home/ops/.ansible -prune -o -type f -exec sha256sum {} +
cd /etc
find . -type f ! -name '*-' ! -name .pwd.lock ! -name ld.so.cache -exec sha256sum {} + | sort -k2
find . -type l -printf '%p -> %l\n' | sort
"""


@dataclass(frozen=True)
class Control:
    """The control node: this machine's programs in the hosts' network, with folders of its own."""

    bed: Testbed
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "XDG_CACHE_HOME": str(CACHE)}
        return own | self.bed.connections

    def run(self, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        return self.bed.run(
            FTCLUSTER, *arguments, env=self.env | changes, cwd=self.folder, timeout=SECONDS
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.bed.run_argv([str(FTCLUSTER), *arguments]),
            env=os.environ | self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ansible(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.bed.run(CONTROL / program, *arguments, cwd=self.folder, timeout=SECONDS)

    def inventory(
        self,
        name: str,
        hosts: tuple[str, ...],
        change: Callable[[str, str], str] = lambda _, line: line,
    ) -> str:
        """Write an inventory of some hosts; `change` gets a host and its line."""
        lines = []
        for line in self.bed.inventory().splitlines():
            host = line.split(" ")[0]
            if host.startswith("node"):
                lines += [change(host, line)] if host in hosts else []
            else:
                lines.append(line)
        path = self.folder / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def snapshot(self, host: str) -> str:
        return self.bed.exec_(host, "sh", "-c", SNAPSHOT, check=True, timeout=60).stdout

    def as_ranks(self, host: str, command: str) -> "subprocess.CompletedProcess[str]":
        """A shell command as the account that trains."""
        return self.bed.exec_(host, "runuser", "-u", "ftcluster", "--", "sh", "-c", command,
                              timeout=120)  # fmt: skip


OpenControl = Callable[..., AbstractContextManager[Control]]
