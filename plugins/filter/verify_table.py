# Apache-2.0 (see LICENSE)
"""Renders the results of verify as a text table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

DOCUMENTATION = r"""
name: verify_table
short_description: Renders the results of verify as a text table
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: A row per host, with results of verify and facts of preflight.
options:
  _input:
    description: The output of C(python -m ftcluster_train.health.verify).
    type: dict
    required: true
  reached:
    description: >-
      The hosts that the control node reaches directly, RV(ftcluster.cluster.verify#module:reached).
    type: list
    elements: str
  facts:
    description: RV(ftcluster.cluster.host_facts#module:facts) of each host, by its inventory name.
    type: dict
    required: true
"""

EXAMPLES = r"""
table: "{{ verify_report | ftcluster.cluster.verify_table(all_facts, ['node1', 'node2']) }}"
"""

RETURN = r"""
_value:
  description: The lines.
  type: list
  elements: str
"""

HEADS = (
    "host", "answers as", "address", "CPU", "cores", "memory", "network", "python", "torch",
    "computes with",
)  # fmt: skip
PROOF_SECONDS = 2.0  # minimum time for a proof; the control node tries at least once a second
MEASURED = ("bf16 GFLOP/s", "fp32 GFLOP/s", "of median")


def speed(facts: Mapping[str, Any]) -> str:
    """Return the name and speed of the host's cluster interface, such as eth0 10 Gbit/s."""
    name: str = facts.get("network_interface", "")
    speeds = {nic["name"]: nic["speed_mbits"] for nic in facts.get("nics", ())}
    mbits = speeds.get(name)
    return f"{name} {mbits / 1000:g} Gbit/s" if mbits else name


def cpu(facts: Mapping[str, Any]) -> str:
    """Return the CPU's generation if known, else its name."""
    generation: str = facts.get("cpu_generation", "other")
    return str(facts.get("cpu_model", "")) if generation == "other" else generation


def row(host: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the table cells of one host."""
    memory = facts.get("memory_bytes")
    return (
        host["name"],
        host["hostname"],
        host["address"],
        cpu(facts),
        str(facts.get("cores", "")),
        f"{memory / 1e9:.0f} GB" if memory else "",
        speed(facts),
        host["python"],
        host["versions"].get("torch", ""),
        host["kernel"],
    )


def measured(host: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the table cells with one host's measurements."""
    speed = host.get("speed") or {}
    relative = speed.get("relative")
    return (
        *(f"{speed[key]:.0f}" if speed.get(key) else "" for key in ("bf16_gflops", "fp32_gflops")),
        f"{relative:.2f}" if relative else "",
    )


def network(links: Sequence[Mapping[str, Any]]) -> str:
    """Return the line with the network's measurements."""
    times = sorted(link["latency_us"] for link in links)
    speeds = sorted(link["mb_per_second"] for link in links)
    return (
        f"{len(links)} pair{'s' * (len(links) > 1)} of hosts measured: {times[0]:.0f} to "
        f"{times[-1]:.0f} us, {speeds[0]:.0f} to {speeds[-1]:.0f} MB/s"
    )


def guard(hosts: Sequence[Mapping[str, Any]], reached: Collection[str]) -> list[str]:
    """Return a line about the firewall, if the control node tried to connect to ports."""
    called = [host for host in hosts if (host.get("calls") or {}).get("came")]
    open_ones = [host for host in called if any(host["calls"]["came"].values())]
    if not called:
        return []
    unsure = [
        host["name"]
        for host in called
        if host["name"] not in reached or host["calls"]["seconds"] < PROOF_SECONDS
    ]
    ours = {host["address"] for host in hosts}
    callers = {who for host in open_ones for whos in host["calls"]["came"].values() for who in whos}
    if callers and callers <= ours:
        return [
            "it was not verified that the hosts' ports are closed to others, because this machine "
            "is one of the hosts"
        ]
    if open_ones:
        return []  # a finding reports this case
    if unsure:
        return [
            "it was not verified that the hosts' ports are closed to others, because this machine "
            f"cannot connect directly to {', '.join(unsure)}"
        ]
    return ["the hosts' ports are closed to this machine, which is not one of the hosts"]


def verify_table(
    report: Mapping[str, Any], facts: Mapping[str, Any], reached: Collection[str] = ()
) -> list[str]:
    """Return the lines of the table, and the lines that concern all hosts."""
    rows = [HEADS, *(row(host, facts.get(host["name"], {})) for host in report["hosts"])]
    if any(host.get("speed") for host in report["hosts"]):
        more = [MEASURED, *map(measured, report["hosts"])]
        rows = [cells + extra for cells, extra in zip(rows, more, strict=True)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in rows
    ]
    count, together = len(report["hosts"]), ", whose packages are consistent"
    if count > 1:
        together = f" with the same {report['packages']} packages"
        milliseconds = f"{report['all_reduce_ms']:.1f} ms for 4 MiB"
        together += f"; an all-reduce over all ranks is correct ({milliseconds})"
    lines.append(f"mpirun reached {count} host{'s' * (count > 1)}{together}")
    lines += guard(report["hosts"], reached)
    return [*lines, network(report["links"])] if report.get("links") else lines


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"verify_table": verify_table}
