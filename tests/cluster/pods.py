"""Starts containers of manifests as processes of this machine, each pod with its own network,
hostname and mounts.

As in a cluster, a container can write only to its volumes, and has no capabilities. Unlike in a
cluster, it belongs to root, has no limits of CPU and memory, and sees this machine's file system,
with a stack that was set up in the place of the node image.
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

# Arguments: $1 the pod's folder, $2 its name, $3 the stack, $4 the working directory, $5 the
# mounts; the rest is the program. A mount has the form SOURCE TARGET OPTIONS, and may hide the
# test's folders.
MOUNT = """
set -eu
pod=$1; hostname "$2"; stack=$3; folder=$4; mounts=$5; shift 5
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$pod/etc,workdir=$pod/work" /etc
cp "$pod/hosts" /etc/hosts
mount -t tmpfs tmpfs /mnt
mount -t tmpfs tmpfs /opt
mkdir -p /opt/ftcluster/stack
mount --bind "$stack" /opt/ftcluster/stack
writable=
while read -r source target options; do
  mkdir -p "$target"
  case $source in
    tmpfs) mount -t tmpfs -o "$options" tmpfs "$target" ;;
    *) mount --bind "$source" "$target" ;;
  esac
  case $options in ro) ;; *) writable="$writable $target " ;; esac
done <<MOUNTS
$mounts
MOUNTS
cut -d ' ' -f 5 /proc/self/mountinfo | while read -r target; do
  case $target in /dev | /dev/pts | /dev/mqueue | /proc | /proc/* | /sys | /sys/*) continue ;; esac
  case $writable in *" $target "*) continue ;; esac
  mount -o remount,bind,ro "$target" 2> /dev/null || [ ! -e "$target" ]
done
if touch /etc/written /usr/written /var/written 2> /dev/null; then echo "/ is writable"; exit 1; fi
cd "$folder"
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all -- "$@"
"""


@dataclass(frozen=True)
class Node:
    """The machine on which a pod's processes run.

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
        """Start a container of a pod; write its output to a file with the container's name.

        Args:
            added: variables that the operator adds.
        """
        spec = template["spec"]
        [described] = [
            each
            for each in (*spec.get("initContainers", []), *spec["containers"])
            if each["name"] == container
        ]
        rights = described["securityContext"]
        assert rights["readOnlyRootFilesystem"]
        assert not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        env = {**self._variables(described.get("env", [])), **added}
        command = [
            re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], word)
            for word in described["command"]
        ]
        mounts = self._mounts(spec["volumes"], described["volumeMounts"])
        base = {"PATH": f"/opt/ftcluster/stack/bin:{os.environ['PATH']}", "HOME": "/root"}
        with (self.folder / container).open("wb") as output:
            return subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.network}", "unshare", "--mount", "--uts",
                 "sh", "-c", MOUNT, "sh", str(self.folder), self.name, str(self.stack),
                 described["workingDir"], "\n".join(mounts), *command],
                env={**base, **env}, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _mounts(
        self, volumes: Sequence[Mapping[str, Any]], mounts: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Return the mounts of a container in MOUNT's form, with mounts below /tmp at the end."""
        sources = {volume["name"]: volume for volume in volumes}
        lines = []
        for mount in sorted(mounts, key=lambda mount: mount["mountPath"] == "/tmp"):
            volume, options = sources[mount["name"]], "ro" if mount.get("readOnly") else "rw"
            if "emptyDir" in volume:
                source, size = "tmpfs", volume["emptyDir"]["sizeLimit"].removesuffix("i")
                options = f"size={size},mode=1777"
            else:
                kind = "volume" if "persistentVolumeClaim" in volume else "job"
                source = str(self.folder.parent / kind)
            lines.append(f"{source} {mount['mountPath']} {options}")
        return lines

    def output(self, container: str) -> str:
        """Return the output of a container."""
        return (self.folder / container).read_text(errors="replace")

    def _variables(self, listed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return a container's variables, as the kubelet resolves them."""
        return {
            each["name"]: each["value"] if "value" in each else self._field(each["valueFrom"])
            for each in listed
        }

    def _field(self, source: Mapping[str, Any]) -> str:
        assert source == {"fieldRef": {"fieldPath": "status.podIP"}}
        return self.address


@contextmanager
def two_nodes(folder: Path, stack: Path, names: Sequence[str], job: str) -> Iterator[list[Node]]:
    """Yield two connected networks and the folders that the pods mount.

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
        pod_folder = folder / f"pod-{index}"
        for name in ("etc", "work"):
            (pod_folder / name).mkdir(parents=True)
        (pod_folder / "hosts").write_text("\n".join(("127.0.0.1 localhost", *lines, "")))
        nodes.append(
            Node(names[index].split(".")[0], addresses[index], networks[index], pod_folder, stack)
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
    """Return all processes of a network."""
    listed = subprocess.run(
        ["ip", "netns", "pids", network], check=False, capture_output=True, text=True
    )
    return [int(pid) for pid in listed.stdout.split()]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
