"""What each check has measured of each host, kept on the control node, and what has become worse.

A host may be as fast as the others and yet slower than it was: all of them may have been throttled,
or it is the only one of its kind.
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

KEPT = 50  # checks of each host
LEAST = 3  # earlier checks to compare with
SLOWER = 0.85  # of a host's own earlier figures
LESS_MEMORY = 0.99  # of the most it ever had; kernels differ by less
KIND = "degraded"
DISK = "disk_mb_per_second"
# figures that a host is compared by: their unit, and what to look at
FIGURES = {
    "bf16_gflops": (
        "GFLOP/s in bf16",
        "compare its frequency, cooling and power limits with an earlier time (turbostat, ipmitool "
        "sel list), and look for other programs",
    ),
    "fp32_gflops": ("GFLOP/s in fp32", "see bf16; memory errors also slow it down (dmesg, EDAC)"),
    "memory_gb_per_second": (
        "GB/s of memory",
        "a module may run slower or be gone (dmidecode -t memory); look for other programs",
    ),
    DISK: (
        "MB/s written to disk",
        "look for other programs that write, for errors (dmesg), and at its health (smartctl -a)",
    ),
    "mb_per_second": (
        "MB/s to its best partner",
        "check cable, switch port, duplex and error counters (ethtool, ethtool -S)",
    ),
}
COMPARED_FIELDS = ("cpu", "threads", "torch")  # else figures are not comparable

JsonObject = dict[str, Any]
HostMeasurements = Mapping[str, Sequence[Mapping[str, Any]]]  # of each host, the oldest first


def figures(document: JsonObject) -> dict[str, dict[str, Any]]:
    """What a check has measured of each host; without those that a run was using."""
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
    """The check with a warning for each figure of a host that is worse than its own earlier ones.

    Each host gets `own_checks`, how many it was compared with, and `of_own_median`, the least of
    its figures relative to their medians.
    """
    now = figures(document)
    warnings = list(document["warnings"])
    hosts = []
    for host in document["hosts"]:
        current, before = now.get(host["name"]), []
        if current:
            before = [
                one
                for one in history.get(host["name"], ())
                if all(one[key] == current[key] for key in COMPARED_FIELDS)
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
    """Figures relative to the medians of the earlier ones, that of the disk to the least."""
    for name in FIGURES:
        earlier = [one[name] for one in before if one.get(name)]
        if current[name] and len(earlier) >= LEAST:
            # what a disk writes a second differs by more from time to time
            usual = min(earlier) if name == DISK else median(earlier)
            yield name, current[name] / usual


def _findings(
    host: str, current: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    since = before[0]["date"]
    for name, part in _relative(current, before):
        if part < SLOWER:
            unit, hint = FIGURES[name]
            usual = "least" if name == DISK else "median"
            what = (
                f"{current[name]:.0f} {unit}, {1 - part:.0%} less than the {usual} of its own "
                f"{len(before)} checks since {since}"
            )
            yield Finding(host, what + _clock(current, before), hint, KIND)
    most = max(one["memory_bytes"] or 0 for one in before)
    memory = current["memory_bytes"]
    if memory and memory < LESS_MEMORY * most:
        what = f"{memory / 1e9:.0f} GB of memory, and it had {most / 1e9:.0f} GB since {since}"
        yield Finding(host, what, "a module may have failed: dmidecode -t memory", KIND)


def _clock(current: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> str:
    earlier = [one["mhz"] for one in before if one["mhz"]]
    if not current["mhz"] or not earlier or current["mhz"] >= SLOWER * median(earlier):
        return ""
    return f"; its clock is {current['mhz']} MHz, and was {median(earlier):.0f}"


def read_history(inventory: str) -> HostMeasurements:
    """The kept figures of an inventory's hosts."""
    history: dict[str, dict[str, list[dict[str, Any]]]] = _read()
    return history.get(inventory, {})


def keep(document: JsonObject) -> None:
    """Add what a check has measured to the kept figures."""
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    with locked_state():
        history, inventory = _read(), document["inventory"]
        of_hosts = history.setdefault(inventory, {})
        for name, one in figures(document).items():
            of_hosts[name] = [*of_hosts.get(name, []), {"date": date, **one}][-KEPT:]
        content = json.dumps(stamped(CHECKS, {"inventories": history}), indent=1)
        write_atomically(_file(), content + "\n")


def _read() -> dict[str, dict[str, list[dict[str, Any]]]]:
    return read_state(_file(), _kept) or {}


def _kept(document: Any) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The figures of a document.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: it has another form.
        FormatError: a newer ftcluster has written it.
    """
    kept: dict[str, dict[str, list[dict[str, Any]]]] = opened(CHECKS, document)["inventories"]
    for one in (check for hosts in kept.values() for checks in hosts.values() for check in checks):
        numbers = [one["mhz"], one["memory_bytes"], *map(one.get, FIGURES)]
        numeric = all(isinstance(number, int | float | None) for number in numbers)
        if (
            not numeric
            or not isinstance(one["date"], str)
            or not set(COMPARED_FIELDS) <= one.keys()
        ):
            raise TypeError(one)
    return kept


def _file() -> Path:
    return state_dir() / "checks.json"
