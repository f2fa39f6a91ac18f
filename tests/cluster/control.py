"""The control node of several hosts, used as a user uses it."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.cluster.brought_python import PLACE, PROGRAM
from tests.programs import CACHE, CONTROL, FTCLUSTER, HANG_SECONDS
from tests.rights import HOST_PACKAGES
from tests.testbed import Settings, Testbed

NAMES = ("node0", "node1", "node2")
HEAD, OTHER, THIRD = NAMES
ADDRESS = {name: f"198.18.0.{10 + number}" for number, name in enumerate(NAMES)}
SECONDS = 1200
# The state of a host that setup may change, as text. It omits backups that useradd makes, and files
# that Ansible and apt leave behind.
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
PURGE = r"""
apt-get -qq purge --auto-remove $(dpkg-query -W -f '${Package}\n' \
  nftables tree 'libtcmalloc-minimal4*' python3-apt 2> /dev/null) > /dev/null
"""
# each process gets one of this machine's two cores, as a separate host would have
PIN_LOGINS = """
mkdir /etc/systemd/system/ssh.service.d
printf '[Service]\nCPUAffinity={}\n' > /etc/systemd/system/ssh.service.d/cores.conf
systemctl daemon-reload && systemctl restart ssh
"""

# a Python that was built with a shared library looks for the library where it was built
LINK_LIBRARY = f"echo {PLACE}/lib > /etc/ld.so.conf.d/python.conf && ldconfig"

Completed = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Control:
    """The control node: this machine's programs in the hosts' network, with separate folders."""

    bed: Testbed
    folder: Path
    hosts: tuple[str, ...] = NAMES
    python: str = ""  # Python for the hosts' stack; "" for the hosts' own Python

    @property
    def env(self) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "XDG_CACHE_HOME": str(CACHE)}
        return own | self.bed.connections

    def run(self, *arguments: str, **changes: str) -> Completed:
        return self.bed.run(
            FTCLUSTER, *arguments, env=self.env | changes, cwd=self.folder, timeout=SECONDS
        )

    def start(self, *arguments: str, **changes: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.bed.run_argv([str(FTCLUSTER), *arguments]),
            env=os.environ | self.env | changes,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ansible(self, program: str, *arguments: str) -> Completed:
        return self.bed.run(CONTROL / program, *arguments, cwd=self.folder, timeout=SECONDS)

    def inventory(
        self,
        name: str,
        hosts: tuple[str, ...],
        change: Callable[[str, str], str] = lambda _, line: line,
    ) -> str:
        """Write an inventory of some hosts; `change` is a function of a host and its line."""
        lines = []
        python = f" ftcluster_python={self.python}" if self.python else ""
        for line in self.bed.inventory().splitlines():
            host = line.split(" ")[0]
            if host.startswith("node"):
                lines += [change(host, f"{line}{python}")] if host in hosts else []
            else:
                lines.append(line)
        path = self.folder / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def shell(self, host: str, command: str) -> str:
        """Return the output of a shell command that runs as root and must succeed."""
        return self.bed.exec_(host, "sh", "-c", command, check=True, timeout=HANG_SECONDS).stdout

    def as_ranks(self, host: str, command: str) -> Completed:
        """Return a shell command that runs as the training account."""
        argv = ("runuser", "-u", "ftcluster", "--", "sh", "-c", command)
        return self.bed.exec_(host, *argv, timeout=HANG_SECONDS)

    @contextmanager
    def changed(self, changes: dict[str, tuple[str, str]]) -> Iterator[None]:
        """Run a shell command on some hosts, and at the end a command that reverts it."""
        done = []
        try:
            for host, (change, undo) in changes.items():
                self.shell(host, change)
                done.append((host, undo))
            yield
        finally:
            for host, undo in done:
                self.shell(host, undo)

    def purge_packages(self) -> None:
        """Remove the distribution's packages that setup installed and teardown keeps."""
        for name in self.hosts:
            self.shell(name, PURGE)

    def snapshots(self) -> dict[str, str]:
        return {name: self.shell(name, SNAPSHOT) for name in self.hosts}


def by_jump_host(bed: Testbed, name: str, more: str = "") -> str:
    """Return ssh's options for reaching the other hosts through a jump host.

    The arguments are further options of the connection to the jump host.
    """
    found = re.search(r"ansible_ssh_common_args=(.*)", bed.inventory())
    assert found
    login = f"-i {bed.wanted.hosts}/ops_key {found[1]} {more}"
    to = bed.wanted.node(name).address
    return f"{found[1]} -o ProxyCommand='ssh {login} -W %h:%p ops@{to}'"


@contextmanager
def bare_hosts(
    suite: str, folder: Path, names: tuple[str, ...] = NAMES, python: Path | None = None,
    packages: tuple[str, ...] = (),
) -> Iterator[Control]:  # fmt: skip
    """Yield hosts that have only Debian and perhaps a brought Python; remove them afterwards."""
    settings = Settings.from_environment()
    settings = replace(settings, suite=suite, extra=tuple(sorted({*HOST_PACKAGES, *packages})))
    if python:
        settings = replace(settings, bind_ro=(f"{python}:{PLACE}",))
    with Testbed(settings) as bed:
        bed.down()  # a killed test may have left the hosts in any state
        bed.up(len(names))
        control = Control(bed, folder, names, PROGRAM if python else "")
        for number, name in enumerate(names):
            control.shell(name, PIN_LOGINS.format(number % 2))
            if python:
                control.shell(name, LINK_LIBRARY)
        yield control
