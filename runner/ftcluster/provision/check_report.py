"""The JSON document of `ftcluster check` (see docs/json.md). Pure functions only."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from ftcluster.cluster.facts import stack_name
from ftcluster.provision.check import Found
from ftcluster_common.protocol.finding import Finding

FORMAT = 1


def document(results: Found) -> dict[str, Any]:
    """Convert the results to the JSON document."""
    problems, warnings = list(_problems(results)), list(_warnings(results))
    report = results.report or {}
    links = report.get("links", [])
    # the head starts the ranks even if --limit excludes it
    head = next((row["name"] for row in report.get("hosts", [])), results.inventory.head)
    return {
        "format": FORMAT,
        "state": "unfit" if problems else "fit",
        "inventory": results.inventory.name,
        "head": head,
        "hosts": [_host(name, results) for name in _names(results)],
        "pairs": links,
        "latency_us": spread([link["latency_us"] for link in links]),
        "mb_per_second": spread([link["mb_per_second"] for link in links]),
        "all_reduce_ms": report.get("all_reduce_ms"),
        "packages": report.get("packages", 0),
        "problems": [asdict(finding) for finding in problems],
        "warnings": [asdict(finding) for finding in warnings],
        "seconds": round(results.seconds, 1),
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return the minimum, median and maximum of the values, or None if there are no values."""
    if not values:
        return None
    return {"min": min(values), "median": round(median(values), 2), "max": max(values)}


def _names(results: Found) -> list[str]:
    """Return the names of the checked hosts, and of the head even if --limit excludes the head."""
    measured = [row["name"] for row in (results.report or {}).get("hosts", [])]
    return list(dict.fromkeys([*results.inventory.hosts, *measured]))


def _host(name: str, results: Found) -> dict[str, Any]:
    facts = results.facts.get(name, {})
    rows = (results.report or {}).get("hosts", [])
    row: dict[str, Any] = next((row for row in rows if row["name"] == name), {})
    interface = row.get("interface") or facts.get("network_interface", "")
    speeds = {nic["name"]: nic["speed_mbits"] for nic in facts.get("nics", [])}
    return {
        "name": name,
        "answers": bool(facts or row),
        "address": row.get("address") or facts.get("network_address", ""),
        "os": facts.get("os", ""),
        "kernel": facts.get("kernel", ""),
        "cpu": facts.get("cpu_model", ""),
        "generation": facts.get("cpu_generation", ""),
        "sockets": facts.get("sockets"),
        "cores": facts.get("cores"),
        "numa_nodes": facts.get("numa_nodes"),
        "memory_bytes": facts.get("memory_bytes"),
        "free_bytes": facts.get("free_bytes"),
        "interface": interface,
        "interface_mbits": row.get("interface_mbits") or speeds.get(interface),
        "stack": stack_name(facts.get("current", "")),
        "python": row.get("python", ""),
        "versions": row.get("versions", {}),
        "computes_with": row.get("kernel", ""),
        "speed": row.get("speed"),
    }


def _problems(results: Found) -> Iterator[Finding]:
    for name in results.inventory.hosts:
        failure = results.failures.get(name)
        if failure and failure.kind == "unreachable":
            *_, reason = ["", *failure.message.strip().splitlines()]
            what = f"it does not answer: {reason}"
            hint = "check that the host is on and that ssh connects to it"
            yield Finding(name, what, hint, "unreachable")
        elif failure:
            hint = "to see the whole output of the task: ftcluster check -v"
            yield Finding(name, failure.problem, hint, "ansible")
        for problem in results.problems.get(name, []):
            yield Finding(name, problem["what"], problem["hint"], "preflight")
        facts = results.facts.get(name)
        if facts and not facts.get("current"):
            what = f"no stack is set up in {facts.get('prefix', '')}"
            yield Finding(name, what, "run ftcluster setup", "stack")
    for problem in (results.report or {}).get("problems", []):
        yield Finding(**problem)


def _warnings(results: Found) -> Iterator[Finding]:
    for name in results.inventory.hosts:
        for notice in results.notices.get(name, []):
            yield Finding(name, notice["what"], notice["hint"], "preflight")
        facts = results.facts.get(name, {})
        if facts.get("current") and not facts.get("tcmalloc"):
            what = "tcmalloc is not installed, so training steps take 15 to 35 % longer"
            hint = "install libtcmalloc-minimal4, or run ftcluster setup as a user with root access"
            yield Finding(name, what, hint, "allocator")
    head = results.inventory.head
    if results.report is None and head in results.failures:
        what = "nothing was measured, because the head failed, and it starts the ranks of all hosts"
        yield Finding(head, what, "fix the head first", "unmeasured")
    for warning in (results.report or {}).get("warnings", []):
        yield Finding(**warning)
