"""The Python interface of the testbed; the command line only calls its methods."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from . import access, cgroups, host, network, registries, rootfs, shape, sysctl, uplink
from .cgroups import Group
from .settings import CONTROL_ADDRESS, DEFAULT_NODES, LOCK, MAX_NODES, SWITCH, Node, Settings
from .shell import TestbedError, environment, require_root, require_tools

log = logging.getLogger(__name__)

Completed = subprocess.CompletedProcess[str]


class Testbed:
    """A few real hosts on this machine, for the length of a test.

    Example:
        >>> with Testbed() as bed:  # doctest: +SKIP
        ...     bed.up(nodes=2)
        ...     Path("inventory.ini").write_text(bed.inventory())
        ...     bed.run("ansible", "-i", "inventory.ini", "nodes", "-m", "ping", check=True)
        ...     bed.kill("node1")

    A machine has one testbed per FTCLUSTER_TESTBED_NAME, which all objects of this class share.

    Raises:
        TestbedError: raised by every method that fails; the message has the cause.
    """

    __test__ = False  # its name starts with Test, but pytest must not collect it

    def __init__(self, settings: Settings | None = None) -> None:
        """Use `settings`, or by default the FTCLUSTER_TESTBED_* variables."""
        self.wanted = settings or Settings.from_environment()

    def __enter__(self) -> Testbed:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # ------------------------------------------------------------ all hosts
    def up(self, nodes: int | None = None) -> None:
        """Start the first `nodes` hosts: build what is missing, boot, wait until ssh answers.

        Running hosts stay unchanged, so a testbed can grow, and hosts that are off are switched on.
        """
        if nodes is not None and not 1 <= nodes <= MAX_NODES:
            raise TestbedError(f"{nodes} hosts: want 1 to {MAX_NODES}")
        with _alone():
            require_tools()
            self._refuse_another()
            before = self.wanted.recorded() or replace(self.wanted, nodes=0, bind_ro=self._binds())
            count = nodes or before.nodes or DEFAULT_NODES
            settings = replace(before, nodes=max(count, before.nodes))
            for folder in {settings.dir, settings.cache.parent}:
                _private_folder(folder)
            started = time.monotonic()
            if not settings.base.exists():
                base = rootfs.get(settings)
                settings.hosts.mkdir(exist_ok=True)
                # an overlay disk that was made for one base must never be mounted over another base
                settings.base.symlink_to(base)
            built = time.monotonic()
            settings.write_record()
            access.make_key(settings)
            network.switch_on(CONTROL_ADDRESS)
            # after the switch, because other testbeds see from the switch that this testbed is up
            sysctl.make_room(settings)
            uplink.connect()
            self._start(settings, settings.all_nodes()[:count])
            log.info(
                "%d hosts answer ssh (root file system %.1f s, boot %.1f s)",
                count, built - started, time.monotonic() - built,
            )  # fmt: skip

    def down(self, purge: bool = False) -> None:
        """Remove every host and everything from `up` except the cache; `purge` removes it too.

        Testbeds of all names share the cache.
        """
        with _alone():
            if purge and (used := host.other_disks()):
                raise TestbedError(
                    f"{', '.join(used)}: other testbeds use the cache; end them first"
                )
            settings = self.wanted.recorded() or self.wanted
            network.switch_off()
            names = {node.name for node in settings.all_nodes()} | cgroups.host_names()
            for name in sorted(names):
                host.power_off(settings.node(name))
                host.remove_traces(settings.node(name))
            for disk in host.mounted_disks():
                host.unmount(Path(disk))
            cgroups.remove_all()
            uplink.disconnect()
            sysctl.put_back()
            for folder in (settings.hosts, settings.cache) if purge else (settings.hosts,):
                if folder.exists():
                    shutil.rmtree(folder)
            if purge and settings.dir.exists() and not any(settings.dir.iterdir()):
                settings.dir.rmdir()

    def status(self) -> dict[str, str]:
        """Return each host's state by name: running, cut off or off; empty without a testbed."""
        require_root()
        settings = self.wanted.recorded()
        return {node.name: _state(node) for node in settings.all_nodes()} if settings else {}

    def inventory(self) -> str:
        """Return the text of an INI inventory of the hosts."""
        require_root()
        return access.inventory(self._settings())

    # ------------------------------------------------------------ power
    def kill(self, node: str) -> None:
        """Cut a host's power: its peers receive nothing, and its disk survives."""
        with _alone():
            host.power_off(self._node(node))

    def boot(self, node: str) -> None:
        """Switch a host on again, with a new cable, and wait until ssh answers."""
        with _alone():
            self._start(self._settings(), [self._node(node)])

    def reinstall(self, node: str) -> None:
        """Give a host a new disk with new SSH host keys, as an installer does, and boot it."""
        with _alone():
            host.power_off(self._node(node))
            host.erase_disk(self._node(node))
            self._start(self._settings(), [self._node(node)])

    # ------------------------------------------------------------ faults
    def cut(self, node: str, other: str | None = None) -> None:
        """Disconnect a host from all others, or from one, without any FIN or RST."""
        with _alone():
            if other is None:
                network.cut_off(self._running(node))
            else:
                network.cut_pair(*self._pair(node, other))

    def heal(self, node: str, other: str | None = None) -> None:
        """Undo the `cut` with the same arguments."""
        with _alone():
            if other is None:
                network.rejoin(self._running(node))
            else:
                network.heal_pair(*self._pair(node, other))

    def shape(self, node: str, rate: str) -> None:
        """Slow a host's cable: `shape("node1", "1gbit")`; rate "off" for no limit."""
        with _alone():
            shape.shape(self._running(node), rate)

    def delay(self, node: str, milliseconds: float) -> None:
        """Delay frames to and from a host by this time in each direction; 0: no delay."""
        with _alone():
            network.delay(self._running(node), milliseconds)

    def lose(self, node: str, percent: int) -> None:
        """Drop this percentage of the frames between a host and the others; 0: none."""
        with _alone():
            network.lose(self._running(node), percent)

    def cpu(self, node: str, percent: float | None) -> None:
        """Limit a host to this percentage of one core; None: no limit."""
        if percent is not None and not percent >= 1:
            raise TestbedError(f"cpu {percent}: want at least 1 (per cent of one core), or max")
        with _alone():
            Group(self._running(node).name).limit_cpu(percent)

    def memory(self, node: str, size: int | None) -> None:
        """Limit a host's memory including its page cache, in bytes; None: no limit."""
        with _alone():
            host.limit_memory(self._running(node), size)

    # ------------------------------------------------------------ commands
    def run(
        self, *cmd: str | Path, check: bool = False, timeout: float | None = None,
        env: dict[str, str] | None = None, cwd: Path | None = None,
    ) -> Completed:  # fmt: skip
        """Run a command of this machine on the control host: in the cluster's network.

        `env` adds variables to this process's environment. The other arguments and the exceptions
        are those of subprocess.run.
        """
        argv = self.run_argv([str(word) for word in cmd])
        env = {**self.connections, **(env or {})}
        return _run(argv, check=check, timeout=timeout, env=env, cwd=cwd)

    def exec_(
        self, node: str, *cmd: str, check: bool = False, timeout: float | None = None
    ) -> Completed:
        """Run a command as root inside a host, not through its network, so the cable may be cut."""
        return _run(self.exec_argv(node, list(cmd)), check=check, timeout=timeout)

    def ssh(
        self, node: str, *cmd: str, check: bool = False, timeout: float | None = None
    ) -> Completed:
        """Run a shell command on a host as its operator, over ssh from the control host."""
        return _run(self.ssh_argv(node, list(cmd)), check=check, timeout=timeout)

    @property
    def connections(self) -> dict[str, str]:
        """Return the folder of Ansible's open connections, which are named after addresses."""
        return {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.wanted.hosts / "cp")}

    def run_argv(self, cmd: list[str]) -> list[str]:
        """Return the command of `run`, for callers that start it in another way."""
        require_root()
        self._settings()
        return network.inside(SWITCH, *cmd)

    def exec_argv(self, node: str, cmd: list[str]) -> list[str]:
        """Return the command of `exec_`."""
        require_root()
        return host.console_argv(self._running(node), cmd)

    def ssh_argv(self, node: str, cmd: list[str]) -> list[str]:
        """Return the command of `ssh`."""
        require_root()
        return access.ssh_argv(self._settings(), self._node(node), *cmd)

    # ------------------------------------------------------------ inner parts
    def _settings(self) -> Settings:
        settings = self.wanted.recorded()
        if settings is None or not network.exists():
            raise TestbedError("no testbed is up: start it with `up`")
        return settings

    def _node(self, name: str) -> Node:
        nodes = {node.name: node for node in self._settings().all_nodes()}
        if name not in nodes:
            raise TestbedError(f"no host {name!r}: there are {' '.join(nodes)}")
        return nodes[name]

    def _running(self, name: str) -> Node:
        node = self._node(name)
        if not host.is_on(node):
            raise TestbedError(f"{name} is off: boot it first")
        return node

    def _pair(self, one: str, other: str) -> tuple[Node, Node]:
        if one == other:
            raise TestbedError(f"{one} and {other} are one host")
        return self._node(one), self._node(other)

    def _binds(self) -> tuple[str, ...]:
        """Return the folders of this machine that every host sees: requested folders, and pip's."""
        for path in self.wanted.bind_ro:
            here = Path(path.partition(":")[0])
            if not here.is_absolute() or not here.exists():
                raise TestbedError(f"cannot show {path!r} in the hosts: no such absolute path")
        return (*self.wanted.bind_ro, *registries.pip_folders())

    def _refuse_another(self) -> None:
        recorded = self.wanted.recorded()
        if recorded is None:
            if network.exists():
                raise TestbedError(
                    "a testbed is up from another FTCLUSTER_TESTBED_DIR; there is one a machine: "
                    "take it `down` first"
                )
            return
        for name in ("suite", "extra"):
            has, wants = getattr(recorded, name), getattr(self.wanted, name)
            if has != wants:
                raise TestbedError(
                    f"the testbed that is up has {name} {has!r}, not {wants!r}: take it `down` "
                    f"first, or set FTCLUSTER_TESTBED_{name.upper()} as it was"
                )

    def _start(self, settings: Settings, nodes: list[Node]) -> None:
        public_key = access.key(settings).with_suffix(".pub")
        with ThreadPoolExecutor() as pool:
            booting = [pool.submit(host.boot, node, settings, public_key) for node in nodes]
            for boot in booting:
                boot.result()
            access.write_known_hosts(settings)
            deadline = time.monotonic() + 60 + 3 * len(nodes)
            waiting = [pool.submit(access.wait_for_ssh, settings, node, deadline) for node in nodes]
            for wait in waiting:
                wait.result()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Change the testbed while all other commands that would change it wait."""
    require_root()
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _private_folder(folder: Path) -> None:
    """Make a folder for root; by default it is in a world-writable folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != 0:
        raise TestbedError(f"{folder} is not root's own folder: remove it")


def _state(node: Node) -> str:
    if not host.is_on(node):
        return "off"
    return "cut off" if network.is_cut_off(node) else "running"


def _run(
    argv: list[str], check: bool, timeout: float | None,
    env: dict[str, str] | None = None, cwd: Path | None = None,
) -> Completed:  # fmt: skip
    return subprocess.run(
        argv, text=True, capture_output=True, stdin=subprocess.DEVNULL, check=check,
        timeout=timeout, env={**environment(), **(env or {})}, cwd=cwd,
    )  # fmt: skip
