"""A machine as its kernel describes it in /sys and /proc, in one line of JSON."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.module_utils.resources import (
    cpu_quota,
    topology,
    whole_cores,
)

from ftcluster.cluster.facts import HostFacts, NumaNode
from ftcluster.cluster.slurm import host_facts
from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus
from tests.unit.clusters import host

CPU = "/sys/devices/system/cpu/cpu"
NODES = "/sys/devices/system/node/"


@dataclass(frozen=True)
class Node:
    """A NUMA node.

    Attributes:
        far: distances to the online nodes, in their order.
        bandwidth: read bandwidth of its nearest initiators in MB/s; 0 where the firmware says none.
    """

    number: int
    cpus: str
    kilobytes: int
    far: str = ""
    bandwidth: int = 0


@dataclass(frozen=True, eq=False)  # machines compare by identity, so that they can be keys
class Machine:
    """A machine as one of its processes sees it.

    Attributes:
        source: the public place of the dump.
        cpu: the CPU's name.
        sockets: CPUs of each package.
        cores: columns of hardware threads: the first ones of cores, the second ones of the same
            cores, ...; one table for cores with as many threads.
        allowed: CPUs that a process may use, "" for all.
        mems: nodes whose memory it may use, "" for all.
        quota: quota of CPU time in hundredths of a CPU, 0 for none.
        nics: driver of each network interface.
        share: CPUs of a Slurm job that is not confined to them, 0 for no job.
    """

    name: str
    source: str
    cpu: str
    sockets: tuple[str, ...]
    cores: tuple[tuple[str, ...], ...]
    nodes: tuple[Node, ...]
    kilobytes: int = 0
    allowed: str = ""
    mems: str = ""
    quota: int = 0
    nics: Mapping[str, str] = field(default_factory=dict)
    share: int = 0

    @classmethod
    def read(cls, line: str) -> "Machine":
        data = json.loads(line)
        lists = {
            "sockets": tuple(data["sockets"]),
            "cores": tuple(tuple(table) for table in data["cores"]),
            "nodes": tuple(Node(**node) for node in data["nodes"]),
        }
        return cls(**{**data, **lists})

    def line(self) -> str:
        needed = ("name", "cpu", "sockets", "cores", "nodes", "number", "cpus", "kilobytes")

        def brief(data: dict[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in data.items() if value or key in needed}

        data = {**brief(asdict(self)), "nodes": [brief(asdict(node)) for node in self.nodes]}
        return json.dumps(data, ensure_ascii=False)

    @cached_property
    def siblings(self) -> dict[int, tuple[int, ...]]:
        """Return the hardware threads of each CPU's core."""
        found = {}
        for table in self.cores:
            for core in zip(*map(parse_cpus, table), strict=True):
                found.update(dict.fromkeys(core, core))
        return found

    @cached_property
    def socket_of(self) -> dict[int, int]:
        return {cpu: at for at, text in enumerate(self.sockets) for cpu in parse_cpus(text)}

    @cached_property
    def usable(self) -> set[int]:
        return set(parse_cpus(self.allowed)) if self.allowed else set(self.siblings)

    @cached_property
    def usable_nodes(self) -> set[int]:
        """Return the nodes whose memory may be used."""
        mems = set(parse_cpus(self.mems)) if self.mems else None
        return {
            node.number
            for node in self.nodes
            if node.kilobytes and (mems is None or node.number in mems)
        }

    def files(self) -> dict[str, str]:
        """Return the kernel's files that describe this machine."""
        files = {NODES + "online": ",".join(str(node.number) for node in self.nodes) + "\n"}
        siblings, socket_of = self.siblings, self.socket_of
        texts = {core: ",".join(map(str, core)) for core in set(siblings.values())}
        for cpu, core in siblings.items():
            files[f"{CPU}{cpu}/topology/physical_package_id"] = f"{socket_of[cpu]}\n"
            files[f"{CPU}{cpu}/topology/thread_siblings_list"] = texts[core] + "\n"
        for node in self.nodes:
            base = f"{NODES}node{node.number}"
            files[f"{base}/cpulist"] = ",".join(map(str, parse_cpus(node.cpus))) + "\n"
            files[f"{base}/distance"] = node.far + "\n"
            files[f"{base}/meminfo"] = f"Node {node.number} MemTotal: {node.kilobytes} kB\n"
            if node.bandwidth:
                files[f"{base}/access0/initiators/read_bandwidth"] = f"{node.bandwidth}\n"
        if self.mems:
            mems = ",".join(map(str, parse_cpus(self.mems)))
            files["/proc/self/status"] = f"Mems_allowed_list:\t{mems}\n"
        if self.quota:
            files["/proc/self/cgroup"] = "0::/pod\n"
            files["/sys/fs/cgroup/pod/cpu.max"] = f"{self.quota * 1000} 100000\n"
        return files

    def facts(self) -> HostFacts:
        """Return the facts that the host's module gathers from these files."""
        files = self.files()

        def read(path: object) -> str:
            return files.get(str(path), "")

        usable = self.usable_nodes
        memory = sum(node.kilobytes for node in self.nodes if node.number in usable)
        memory = memory * 1024 or self.kilobytes * 1024
        sockets, cores, numa = topology(self.usable, memory, self.cpu, read)
        quota = cpu_quota(read)
        cores = cores if quota is None else min(cores, whole_cores(quota))
        found = host(
            re.sub(r"[^\w.]+", "-", self.name), cpu_model=self.cpu, sockets=sockets,
            memory_bytes=memory, cpu_quota=quota, cores=cores,
            numa_nodes=min(sum(node["cores"] > 0 for node in numa), cores),
            numa=tuple(NumaNode.from_dict(node) for node in numa), threads=len(self.usable),
        )  # fmt: skip
        return found if not self.share else share_of_job(found, self.share)


def share_of_job(facts: HostFacts, cpus: int) -> HostFacts:
    """Return the facts of a node of a Slurm job that has this many of its CPUs."""
    data: dict[str, Any] = json.loads(json.dumps(asdict(facts)))
    found = host_facts(facts.name, {**data, "current": "native-1b2c"}, cpus)
    return replace(found, prefix=facts.prefix)


def machine(
    name: str,
    source: str,
    cpu: str,
    package_of: Mapping[int, Any],
    siblings: Iterable[tuple[int, ...]],
    nodes: Iterable[Node],
    **more: Any,
) -> Machine:
    """Return a machine from the CPUs of each package and of each core, as in a dump."""
    packages = defaultdict(list)
    for one in sorted(package_of):
        packages[package_of[one]].append(one)
    tables: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for core in sorted({tuple(sorted(core)) for core in siblings}):
        tables[len(core)].append(core)
    return Machine(
        name, source, cpu,
        tuple(format_cpus(cpus) for cpus in packages.values()),
        tuple(tuple(_list(column) for column in zip(*table, strict=True))
              for table in tables.values()),
        tuple(sorted(nodes, key=lambda node: node.number)),
        **more,
    )  # fmt: skip


def _list(cpus: Iterable[int]) -> str:
    """Return a list in this order, because format_cpus would sort it."""
    numbers = list(cpus)
    return format_cpus(numbers) if numbers == sorted(numbers) else ",".join(map(str, numbers))
