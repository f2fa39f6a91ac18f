"""Whether what the ranks of verify say is as it must be. Pure functions only."""

from collections.abc import Mapping, Sequence
from typing import Any

from ftcluster_common.finding import Finding
from ftcluster_common.launch import Host
from ftcluster_train.distributed.connectivity import pairs_apart
from ftcluster_train.verification.outliers import relative_speeds

SHOWN = ("torch", "transformers", "ftcluster-train")
# what training uses, and the role firewall opens
PORTS = "29500-29999 and the hosts' local ports (32768-60999 unless sysctl says otherwise)"
SETUP = "run ftcluster setup"
# oneDNN's names for what it generates code for, the best first, and the CPU flag that promises it
PROMISES = (
    ("amx_bf16", "amx"),
    ("avx512_bf16", "avx512_core_bf16"),
    ("avx512f", "avx512_core"),
    ("avx2", "avx2"),
)

Answer = Mapping[str, Any]  # what one rank says, as `probe` makes it


def compare(hosts: Sequence[Host], answers: Sequence[Answer]) -> list[Finding]:
    """What is not as it must be."""
    problems = []
    for answer in answers:
        host = hosts[answer["rank"]]
        if answer["error"]:
            what = f"its rank stopped: {answer['error']}"
            problems.append(Finding(host.name, what, "the other hosts may say more", "launch"))
        if not answer.get("has_address", True):
            what = (
                f"{host.address} was answered by {answer['hostname']}, which does not have this "
                "address"
            )
            hint = "set ftcluster_address=ADDRESS in the inventory"
            problems.append(Finding(host.name, what, hint, "network"))
        if not answer.get("sum_right", True):
            what = "an all-reduce over all hosts gave a wrong sum"
            problems.append(Finding(host.name, what, "do not train on it", "result"))
        promised = promise(answer.get("flags", ()))
        if promised and promised not in answer.get("kernel", promised):
            what = (
                f"its CPU promises {promised}, but oneDNN computed with "
                f"{answer['kernel'] or 'no kernel of its own'}"
            )
            hint = "see ONEDNN_MAX_CPU_ISA on the host"
            problems.append(Finding(host.name, what, hint, "kernel"))
    problems += apart(hosts, answers)
    whole = [answer for answer in answers if "packages" in answer]
    for answer in whole[1:]:
        problems += differences(hosts, whole[0], answer)
    return problems


def apart(hosts: Sequence[Host], answers: Sequence[Answer]) -> list[Finding]:
    """Pairs of hosts without a way to each other."""
    told = [answer["unreached"] for answer in answers if "unreached" in answer]
    return [
        Finding(
            hosts[one].name,
            f"no TCP connection between it and {hosts[other].name}",
            f"let them reach each other by TCP, ports {PORTS} (firewall, security group, switch)",
            "network",
        )
        for one, other in sorted(pairs_apart(told[0] if told else []))
    ]


def differences(hosts: Sequence[Host], first: Answer, other: Answer) -> list[Finding]:
    """Versions on one host that are not those of the first."""
    one, another = hosts[first["rank"]].name, hosts[other["rank"]].name
    found = [
        f"{name} {other['packages'].get(name, 'missing')} instead of "
        f"{first['packages'].get(name, 'none')}"
        for name in sorted(first["packages"].keys() | other["packages"].keys())
        if first["packages"].get(name) != other["packages"].get(name)
    ]
    if not found:
        return []
    what = f"differs from {one}: {', '.join(found)}"
    return [Finding(another, what, SETUP, "packages")]


def promise(flags: Sequence[str]) -> str:
    """What oneDNN's kernel must be named after on a CPU with these flags, or ""."""
    return next((kernel for flag, kernel in PROMISES if flag in flags), "")


def strangers(hosts: Sequence[Host], answers: Sequence[Answer]) -> list[Finding]:
    """Hosts whose ports were called by somebody who is not one of the cluster."""
    ours = {host.address for host in hosts}
    open_to: dict[str, dict[str, list[str]]] = {}
    for answer in answers:
        for port, callers in answer.get("calls", {}).get("came", {}).items():
            for caller in set(callers) - ours:
                open_to.setdefault(caller, {}).setdefault(hosts[answer["rank"]].name, []).append(
                    port
                )
    hint = (
        f"have the network or the hosts' firewall close the ports {PORTS} to all but the cluster; "
        "with root ftcluster setup does"
    )
    return [
        Finding(
            name,
            f"TCP ports of training are open to {caller}, which is not one of the cluster: it "
            f"reached {' and '.join(ports)}",
            hint,
            "firewall",
        )
        for caller, found in sorted(open_to.items())
        for name, ports in found.items()
    ]


def rows(hosts: Sequence[Host], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """One row a host that answered."""
    found: list[dict[str, Any]] = [
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
    relative = relative_speeds(found)
    for row in found:
        if row["speed"]:
            row["speed"] = {**row["speed"], "relative": relative[row["name"]]}
    return found


def links(hosts: Sequence[Host], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """One row a pair that was measured, in the hosts' order."""
    found = sorted(
        (link for answer in answers for link in answer.get("links", [])),
        key=lambda link: link["ranks"],
    )
    return [
        {
            "hosts": [hosts[rank].name for rank in link["ranks"]],
            "latency_us": link["latency_us"],
            "mb_per_second": link["mb_per_second"],
        }
        for link in found
    ]


def at_work(hosts: Sequence[Host], answers: Sequence[Answer]) -> list[Finding]:
    """Hosts on which a run was at work meanwhile."""
    return [
        Finding(
            hosts[answer["rank"]].name,
            f"{', '.join(answer['busy'])} is at work on it, so what was measured is too low",
            "measure again when it has ended",
            "busy",
        )
        for answer in answers
        if answer.get("busy")
    ]
