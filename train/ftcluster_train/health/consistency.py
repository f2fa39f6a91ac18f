"""A comparison of the reports that verify's ranks send about their hosts. Pure functions only."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ftcluster_common.protocol.finding import Finding
from ftcluster_common.protocol.launch import CLUSTER_PORTS, Host
from ftcluster_train.comm.connectivity import unconnected_pairs
from ftcluster_train.health.open_ports import HostFirewall, firewall_advice
from ftcluster_train.health.outliers import relative_speeds

SHOWN = ("torch", "transformers", "ftcluster-train")
# the ports of training, which the role firewall opens
PORTS = (
    f"{CLUSTER_PORTS.start}-{CLUSTER_PORTS.stop - 1} and the hosts' local ports "
    "(32768-60999 unless sysctl says otherwise)"
)
SETUP = "run ftcluster setup"
FLUSHED = (
    "; the rules of setup that close them (/etc/ftcluster/firewall.nft) are not loaded any more: "
    "something has removed them, such as nft flush ruleset"
)
# CPU flags, best first, and oneDNN's name for the kernels that it should use with each
KERNELS = (
    ("amx_bf16", "amx"),
    ("avx512_bf16", "avx512_core_bf16"),
    ("avx512f", "avx512_core"),
    ("avx2", "avx2"),
)

HostAnswer = Mapping[str, Any]  # the answer of one rank, see `probe`


def find_problems(
    hosts: Sequence[Host],
    answers: Sequence[HostAnswer],
    firewalls: Mapping[str, HostFirewall] = MappingProxyType({}),
) -> list[Finding]:
    """Return all problems that prevent training on the hosts.

    Args:
        firewalls: firewall of each host whose firewall program is supported.
    """
    problems = []
    for answer in answers:
        host = hosts[answer["rank"]]
        if answer["error"]:
            what = f"its rank failed: {answer['error']}"
            problems.append(
                Finding(host.name, what, "see the problems of the other hosts", "launch")
            )
        if not answer.get("has_address", True):
            what = f"{answer['hostname']} answers at {host.address}, but does not have this address"
            hint = "set ftcluster_address=ADDRESS in the inventory"
            problems.append(Finding(host.name, what, hint, "network"))
        if not answer.get("sum_right", True):
            what = "an all-reduce over all hosts gave a wrong sum"
            problems.append(Finding(host.name, what, "do not train on this host", "result"))
        expected = expected_kernel(answer.get("flags", ()))
        if expected and expected not in answer.get("kernel", expected):
            what = (
                f"its CPU has {expected}, but oneDNN computed with "
                f"{answer['kernel'] or 'no kernel of its own'}"
            )
            hint = "see ONEDNN_MAX_CPU_ISA on the host"
            problems.append(Finding(host.name, what, hint, "kernel"))
    problems += unconnected_hosts(hosts, answers, firewalls)
    complete = [answer for answer in answers if "packages" in answer]
    for answer in complete[1:]:
        problems += package_differences(hosts, complete[0], answer)
    return problems


def unconnected_hosts(
    hosts: Sequence[Host], answers: Sequence[HostAnswer], firewalls: Mapping[str, HostFirewall]
) -> list[Finding]:
    """Return the pairs of hosts that cannot connect to each other."""
    unreached: list[list[int]] = next(
        (answer["unreached"] for answer in answers if "unreached" in answer), []
    )
    return [
        Finding(
            hosts[lower].name,
            f"no TCP connection between it and {hosts[higher].name}",
            "; ".join(
                (
                    f"allow TCP connections between them on ports {PORTS} (check firewall, "
                    "security group and switch)",
                    *firewall_advice((hosts[lower], hosts[higher]), hosts, firewalls),
                )
            ),
            "network",
        )
        for lower, higher in sorted(unconnected_pairs(unreached))
    ]


def package_differences(
    hosts: Sequence[Host], first: HostAnswer, other: HostAnswer
) -> list[Finding]:
    """Return the packages of one host whose versions differ from the first host's."""
    expected, actual = first["packages"], other["packages"]
    differences = [
        f"{name} {actual.get(name, 'missing')} instead of {expected.get(name, 'none')}"
        for name in sorted(expected.keys() | actual.keys())
        if expected.get(name) != actual.get(name)
    ]
    if not differences:
        return []
    what = f"differs from {hosts[first['rank']].name}: {', '.join(differences)}"
    return [Finding(hosts[other["rank"]].name, what, SETUP, "packages")]


def expected_kernel(flags: Sequence[str]) -> str:
    """Return part of the name of oneDNN's best kernel for CPU flags, or ""."""
    return next((kernel for flag, kernel in KERNELS if flag in flags), "")


def open_to_outsiders(
    hosts: Sequence[Host], answers: Sequence[HostAnswer], guarded: Collection[str] = ()
) -> list[Finding]:
    """Return hosts whose ports accept connections from outside the cluster.

    Args:
        guarded: names of hosts on which setup has installed rules that close the ports.
    """
    inside = {host.address for host in hosts}
    ports_of: dict[tuple[str, str], list[str]] = {}  # keys: outsider and host
    for answer in answers:
        for port, addresses in answer.get("calls", {}).get("came", {}).items():
            for outsider in set(addresses) - inside:
                ports_of.setdefault((outsider, hosts[answer["rank"]].name), []).append(port)
    return [
        Finding(
            name,
            f"TCP ports of training are open to {outsider}, which is not in the cluster: it "
            f"reached {' and '.join(ports)}{FLUSHED if name in guarded else ''}",
            "run ftcluster setup again to load the rules; if they vanish again, find out who "
            "flushes them"
            if name in guarded
            else f"close the ports {PORTS} to all but the cluster, in the network or in the hosts' "
            "firewall; with root, ftcluster setup does this",
            "firewall",
        )
        for (outsider, name), ports in sorted(ports_of.items(), key=lambda item: item[0][0])
    ]


def host_rows(hosts: Sequence[Host], answers: Sequence[HostAnswer]) -> list[dict[str, Any]]:
    """Return a row for each host that answered."""
    rows: list[dict[str, Any]] = [
        {
            "name": hosts[answer["rank"]].name,
            "address": hosts[answer["rank"]].address,
            "hostname": answer.get("hostname", ""),
            "python": answer.get("python", ""),
            "kernel": answer.get("kernel", ""),
            "versions": {name: answer.get("packages", {}).get(name, "") for name in SHOWN},
            "interface": answer.get("interface", ""),
            "interface_mbits": answer.get("interface_mbits"),
            "speed": answer.get("speed"),
            "calls": answer.get("calls"),
        }
        for answer in answers
    ]
    relative = relative_speeds(rows)
    for row in rows:
        if row["speed"]:
            row["speed"] = {**row["speed"], "relative": relative[row["name"]]}
    return rows


def link_rows(hosts: Sequence[Host], answers: Sequence[HostAnswer]) -> list[dict[str, Any]]:
    """Return a row for each measured pair, in the hosts' order."""
    links = [link for answer in answers for link in answer.get("links", [])]
    return [
        {
            "hosts": [hosts[rank].name for rank in link["ranks"]],
            "latency_us": link["latency_us"],
            "mb_per_second": link["mb_per_second"],
        }
        for link in sorted(links, key=lambda link: link["ranks"])
    ]


def without_impi(hosts: Sequence[Host], answers: Sequence[HostAnswer]) -> list[Finding]:
    """Return hosts on which the Intel MPI backend failed, so that training uses gloo."""
    return [
        Finding(
            hosts[answer["rank"]].name,
            f"the backend impi fails there, so gloo is used: {answer['impi_error']}",
            "gloo takes twice as long; set all hosts up together: ftcluster setup",
            "backend",
        )
        for answer in answers
        if answer.get("impi_error")
    ]


def busy_hosts(hosts: Sequence[Host], answers: Sequence[HostAnswer]) -> list[Finding]:
    """Return hosts on which another run was active during the measurement."""
    return [
        Finding(
            hosts[answer["rank"]].name,
            f"{', '.join(answer['busy'])} is running on it, so the measured values are too low",
            "measure again when the run has ended",
            "busy",
        )
        for answer in answers
        if answer.get("busy")
    ]
