"""Keeps each host's measured figures on the control node, and finds hosts that became slower.

A comparison with other hosts is not enough: all hosts may be throttled, or a host may be the only
host of its kind.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from ftcluster.paths import locked_state, read_state, state_dir, write_atomically
from ftcluster_common.protocol.finding import Finding
from ftcluster_common.protocol.formats import CHECKS, opened, stamped

KEPT = 50  # number of checks kept for each host
LEAST = 3  # minimum number of earlier checks for a comparison
SLOWER = 0.85  # a figure below this fraction of the host's earlier figures is reported
LESS_MEMORY = 0.99  # this limit for memory, which differs little between kernels
KIND = "degraded"
DISK = "disk_mb_per_second"
# unit and advice of each compared figure
FIGURES = {
    "bf16_gflops": (
        "GFLOP/s in bf16",
        "compare its frequency, cooling and power limits with earlier values (turbostat, ipmitool "
        "sel list), and look for other running programs",
    ),
    "fp32_gflops": (
        "GFLOP/s in fp32",
        "check its frequency, cooling and power limits (turbostat, ipmitool sel list), memory "
        "errors (dmesg, EDAC) and other running programs",
    ),
    "memory_gb_per_second": (
        "GB/s of memory",
        "a memory module may be slower or missing (dmidecode -t memory); also look for other "
        "running programs",
    ),
    DISK: (
        "MB/s written to disk",
        "look for other programs that write, for errors (dmesg), and for a failing disk "
        "(smartctl -a)",
    ),
    "mb_per_second": (
        "MB/s to the fastest other host",
        "check cable, switch port, duplex and error counters (ethtool, ethtool -S)",
    ),
}
COMPARED_FIELDS = ("cpu", "threads", "torch")  # figures are comparable only if these are equal

JsonObject = dict[str, Any]
HostMeasurements = Mapping[str, Sequence[Mapping[str, Any]]]  # checks by host, the oldest first


def figures(document: JsonObject) -> dict[str, dict[str, Any]]:
    """Return the figures that a check measured, by host; skip hosts that a run uses."""
    busy = {warning["host"] for warning in document["warnings"] if warning["kind"] == "busy"}
    if "" in busy:
        return {}
    best: dict[str, float] = {}
    for pair in document["pairs"]:
        for name in pair["hosts"]:
            best[name] = max(best.get(name, 0.0), pair["mb_per_second"])
    values = {}
    for host in document["hosts"]:
        speed, name = host["speed"], host["name"]
        if speed and name not in busy:
            values[name] = {
                "cpu": speed["cpu"],
                "threads": speed["threads"],
                "torch": host["versions"].get("torch", ""),
                "bf16_gflops": speed["bf16_gflops"],
                "fp32_gflops": speed["fp32_gflops"],
                "memory_gb_per_second": speed["memory_gb_per_second"],
                "disk_mb_per_second": speed["disk_mb_per_second"],
                "mhz": speed["mhz"],
                "mb_per_second": best.get(name),
                "memory_bytes": host["memory_bytes"],
            }
    return values


def compared(document: JsonObject, history: HostMeasurements) -> JsonObject:
    """Add a warning for each figure of a host that is worse than the host's earlier figures.

    Add two values to each host: `own_checks` is the number of earlier checks that were compared.
    `of_own_median` is the smallest ratio of a figure to the median of the earlier figures.
    """
    now = figures(document)
    warnings = list(document["warnings"])
    hosts = []
    for host in document["hosts"]:
        current, before = now.get(host["name"]), []
        if current:
            before = [
                check
                for check in history.get(host["name"], ())
                if all(check[key] == current[key] for key in COMPARED_FIELDS)
            ]
        parts: list[float] = []
        if current and len(before) >= LEAST:
            parts = [part for _, part in _relative(current, before)]
            warnings += map(asdict, _findings(host["name"], current, before))
        least = round(min(parts), 3) if parts else None
        hosts.append({**host, "own_checks": len(before), "of_own_median": least})
    return {**document, "hosts": hosts, "warnings": warnings}


def _relative(
    current: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, float]]:
    """Yield each figure's ratio to the median of earlier checks (for the disk: the minimum)."""
    for name in FIGURES:
        earlier = [check[name] for check in before if check.get(name)]
        if current[name] and len(earlier) >= LEAST:
            # disk speed varies more from check to check
            usual = min(earlier) if name == DISK else median(earlier)
            yield name, current[name] / usual


def _findings(
    host: str, current: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    since = before[0]["date"]
    for name, part in _relative(current, before):
        if part < SLOWER:
            unit, hint = FIGURES[name]
            usual = "minimum" if name == DISK else "median"
            what = (
                f"{current[name]:.0f} {unit}, {1 - part:.0%} less than the {usual} of this host's "
                f"{len(before)} checks since {since}"
            )
            yield Finding(host, what + _clock(current, before), hint, KIND)
    most = max(check["memory_bytes"] or 0 for check in before)
    memory = current["memory_bytes"]
    if memory and memory < LESS_MEMORY * most:
        what = (
            f"{memory / 1e9:.0f} GB of memory, but {most / 1e9:.0f} GB in an earlier check "
            f"(checks since {since})"
        )
        yield Finding(host, what, "a module may have failed: dmidecode -t memory", KIND)


def _clock(current: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> str:
    earlier = [check["mhz"] for check in before if check["mhz"]]
    if not current["mhz"] or not earlier or current["mhz"] >= SLOWER * median(earlier):
        return ""
    return f"; its clock is {current['mhz']} MHz, but was {median(earlier):.0f} MHz"


def read_history(inventory: str) -> HostMeasurements:
    """Return the saved figures of an inventory's hosts."""
    history: dict[str, dict[str, list[dict[str, Any]]]] = _read()
    return history.get(inventory, {})


def keep(document: JsonObject) -> None:
    """Save the figures of a check."""
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    with locked_state():
        history, inventory = _read(), document["inventory"]
        of_hosts = history.setdefault(inventory, {})
        for name, of_host in figures(document).items():
            of_hosts[name] = [*of_hosts.get(name, []), {"date": date, **of_host}][-KEPT:]
        content = json.dumps(stamped(CHECKS, {"inventories": history}), indent=1)
        write_atomically(_file(), content + "\n")


def _read() -> dict[str, dict[str, list[dict[str, Any]]]]:
    return read_state(_file(), _kept) or {}


def _kept(document: Any) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the figures in a document of the state folder.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: the document is damaged.
        FormatError: a newer ftcluster has written the document.
    """
    kept: dict[str, dict[str, list[dict[str, Any]]]] = opened(CHECKS, document)["inventories"]
    histories = [checks for hosts in kept.values() for checks in hosts.values()]
    for check in (check for checks in histories for check in checks):
        numbers = [check["mhz"], check["memory_bytes"], *map(check.get, FIGURES)]
        numeric = all(isinstance(number, int | float | None) for number in numbers)
        if (
            not numeric
            or not isinstance(check["date"], str)
            or not set(COMPARED_FIELDS) <= check.keys()
        ):
            raise TypeError(check)
    return kept


def _file() -> Path:
    return state_dir() / "checks.json"
