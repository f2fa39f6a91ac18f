"""Starts containers of manifests as processes of this machine, each pod with its own network,
hostname and mounts.

Not as in a cluster: they are root's, on this machine's file system, with a stack that was set up in
the place of the node image, and without limits.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# $1 the pod's folder, $2 its name, $3 the stack; the rest is the program
MOUNT = """
set -eu
pod=$1; hostname "$2"; stack=$3; shift 3
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$pod/etc,workdir=$pod/work" /etc
cp "$pod/hosts" /etc/hosts
mount -t tmpfs tmpfs /mnt; mkdir /mnt/ftcluster
mount --bind "$pod/../volume" /mnt/ftcluster
mount -t tmpfs tmpfs /opt; mkdir -p /opt/ftcluster/stack /opt/ftcluster/job
mount --bind "$stack" /opt/ftcluster/stack
mount --bind "$pod/../job" /opt/ftcluster/job
exec "$@"
"""


@dataclass(frozen=True)
class Node:
    """The machine of a pod's processes.

    Attributes:
        folder: the pod's own folder; the job and the volume are beside it.
    """

    name: str
    address: str
    network: str
    folder: Path
    stack: Path

    def start(
        self, template: Mapping[str, Any], container: str, added: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start a container of a pod; its output goes to a file of its name.

        Args:
            added: variables that the operator adds.
        """
        spec = template["spec"]
        [found] = [
            one
            for one in (*spec.get("initContainers", []), *spec["containers"])
            if one["name"] == container
        ]
        env = {**self._variables(found.get("env", [])), **added}
        command = [re.sub(r"\$\((\w+)\)", lambda m: env[m[1]], word) for word in found["command"]]
        base = {"PATH": f"/opt/ftcluster/stack/bin:{os.environ['PATH']}", "HOME": "/root"}
        with (self.folder / container).open("wb") as output:
            return subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.network}", "unshare", "--mount", "--uts",
                 "sh", "-c", MOUNT, "sh", str(self.folder), self.name, str(self.stack), *command],
                env={**base, **env}, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def output(self, container: str) -> str:
        """Return the output of a container."""
        return (self.folder / container).read_text(errors="replace")

    def _variables(self, listed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """A container's variables, as the kubelet resolves them."""
        return {
            one["name"]: one["value"] if "value" in one else self._field(one["valueFrom"])
            for one in listed
        }

    def _field(self, source: Mapping[str, Any]) -> str:
        assert source == {"fieldRef": {"fieldPath": "status.podIP"}}
        return self.address


@contextmanager
def two_nodes(folder: Path, stack: Path, names: Sequence[str], job: str) -> Iterator[list[Node]]:
    """Two connected networks, and the folders of what is mounted.

    Args:
        job: the content of the ConfigMap.
    """
    networks = [f"ftcluster-{os.getpid()}-{index}" for index in range(2)]
    addresses = ["10.77.0.1", "10.77.0.2"]
    (folder / "job").mkdir(parents=True)
    (folder / "job" / "job.json").write_text(job)
    (folder / "volume").mkdir(exist_ok=True)
    lines = [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
    nodes = []
    for index in range(2):
        own = folder / f"pod-{index}"
        for name in ("etc", "work"):
            (own / name).mkdir(parents=True)
        (own / "hosts").write_text("\n".join(("127.0.0.1 localhost", *lines, "")))
        nodes.append(
            Node(names[index].split(".")[0], addresses[index], networks[index], own, stack)
        )
    try:
        for network in networks:
            _ip("netns", "add", network)
            _ip("-n", network, "link", "set", "lo", "up")
        first, second = networks
        _ip("-n", first, "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", second)
        for network, address in zip(networks, addresses, strict=True):
            _ip("-n", network, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", network, "link", "set", "eth0", "up")
        yield nodes
    finally:
        for network in networks:
            for pid in processes(network):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", network], check=False, capture_output=True)


def processes(network: str) -> list[int]:
    """All processes of a network."""
    found = subprocess.run(
        ["ip", "netns", "pids", network], check=False, capture_output=True, text=True
    )
    return [int(pid) for pid in found.stdout.split()]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
