# Apache-2.0 (see LICENSE)
"""What verify found, as lines of text with one row a host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: proof_table
short_description: What verify found, as lines of text
version_added: 0.1.0
author: The ftcluster authors (@ftcluster)
description: Lines up what was found on each host with what preflight knows of it.
options:
  _input:
    description: The document that C(python -m ftcluster_train.verify) prints.
    type: dict
    required: true
  facts:
    description: RV(ftcluster.cluster.host_facts#module:facts) of each host, by its inventory name.
    type: dict
    required: true
"""

EXAMPLES = r"""
table: "{{ verify_report | ftcluster.cluster.proof_table(all_facts) }}"
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


def speed(facts):
    """The interface that carries the cluster, with its speed: eth0 10 Gbit/s."""
    name = facts.get("network_interface", "")
    found = next((nic for nic in facts.get("nics", []) if nic["name"] == name), {})
    mbits = found.get("speed_mbits")
    return f"{name} {mbits / 1000:g} Gbit/s" if mbits else name


def cpu(facts):
    """The generation where the table knows it, else the CPU's own name."""
    generation = facts.get("cpu_generation", "other")
    return facts.get("cpu_model", "") if generation == "other" else generation


def row(host, facts):
    """The cells of one host."""
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
        host["versions"]["torch"],
        host["kernel"],
    )


def proof_table(report, facts):
    """The lines of the table, and one line for what concerns all hosts."""
    rows = [HEADS, *(row(host, facts.get(host["name"], {})) for host in report["hosts"])]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEADS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in rows
    ]
    count, together = len(report["hosts"]), "the packages fit together"
    if count > 1:
        together = f"the same {report['packages']} packages on each"
        together += (
            f", an all-reduce over all is right ({report['all_reduce_ms']:.1f} ms for 4 MiB)"
        )
    return [*lines, f"mpirun reached {count} host{'s' * (count > 1)}, {together}"]


class FilterModule:
    """Ansible's entry point."""

    def filters(self):
        """The filters of this file by name."""
        return {"proof_table": proof_table}
