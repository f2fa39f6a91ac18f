"""Tables of the results for docs/reliability.md and bench/notes/reliability.md."""

import json
import platform
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.machines import short_name
from tests.faults import operations
from tests.faults.campaign import survived
from tests.faults.injections import FAULTS

WHERE = {
    "localhost": "one host, two ranks", "hosts": "three hosts", "16 ranks": "four hosts, 16 ranks",
}  # fmt: skip
Results = Sequence[dict[str, Any]]


def machine() -> dict[str, Any]:
    """Return a description of the machine of the measurements."""
    text = Path("/proc/cpuinfo").read_text()
    model = next(line for line in text.splitlines() if line.startswith("model name"))
    return {
        "cpu": model.partition(": ")[2],
        "cores": text.count("processor\t"),
        "amx": " amx_tile" in text,
        "kernel": platform.release(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results, each with the CPU of the machine whose line precedes it."""
    results: list[dict[str, Any]] = []
    cpu = ""
    for line in path.read_text().splitlines():
        result = json.loads(line)
        if result["kind"] == "machine":
            cpu = short_name(result)
        results.append(result | ({"cpu": cpu} if result["kind"] == "fault" else {}))
    return results


def new_machine(results: Results) -> list[dict[str, Any]]:
    """Return the line of this machine, unless it is the last machine of the results."""
    here = {"kind": "machine", **machine()}
    return [here] if [one for one in results if one["kind"] == "machine"][-1:] != [here] else []


def tables(results: Results) -> dict[str, str]:
    """Return the tables of docs/reliability.md and bench/notes/reliability.md, by their names."""
    faults = [one for one in results if one["kind"] == "fault"]
    machines = [one for one in results if one["kind"] == "machine"]
    heads = (
        "tries | survived | cause named | noticed after, s | next step after, s | steps lost | left"
    )
    by_place = [f"| fault | on | CPU: tries | {heads} |", "|---" * 10 + "|"]
    by_fault = [
        "| fault | tries | survived | noticed after, s | next step after, s |", "|---" * 5 + "|",
    ]  # fmt: skip
    for name, fault in FAULTS.items():
        tried = [one for one in faults if one["fault"] == name]
        if tried:
            counts, cells = _counts(tried), [fault.title]
            cells += [counts["tries"], counts["survived"], counts["noticed"], counts["next step"]]
            by_fault.append(f"| {' | '.join(cells)} |")
    for place, where in WHERE.items():
        for name, fault in FAULTS.items():
            tried = [one for one in faults if (one["fault"], one["place"]) == (name, place)]
            if tried:
                cpus = Counter(one["cpu"] for one in tried)
                measured_on = ", ".join(f"{cpu}: {count}" for cpu, count in cpus.items())
                cells = (fault.title, where, measured_on, *_counts(tried).values())
                by_place.append(f"| {' | '.join(cells)} |")
    return {
        "faults": "\n".join(by_fault),
        "faults-by-place": "\n".join(by_place),
        "faults-machines": "\n".join(
            f"- {machine}" for machine in dict.fromkeys(map(_machine, machines))
        ),
        "faults-not-tried": "\n".join(_untried(faults)),
        "faults-operations": operations.table(results),
        "faults-notes": "\n".join(f"- {one['text']}" for one in results if one["kind"] == "note"),
    }


def _untried(faults: Results) -> list[str]:
    """Return a line for each place with the faults that have no result."""
    tried = {(one["place"], one["fault"]) for one in faults}
    lines = []
    for place, where in WHERE.items():
        there = {name: fault.title for name, fault in FAULTS.items() if place in fault.places}
        untried = [title for name, title in there.items() if (place, name) not in tried]
        if untried:
            lines.append(
                f"- {where}: {'all' if len(untried) == len(there) else '; '.join(untried)}"
            )
    return lines or ["- none"]


def _counts(tried: Results) -> dict[str, str]:
    """Return the cells of a row, in the order of the columns."""
    return {
        "tries": str(len(tried)),
        "survived": str(sum(map(survived, tried))),
        "cause named": str(sum(one["named"] for one in tried)),
        "noticed": _spread([one["noticed"] for one in tried]),
        "next step": _spread([one["moving"] for one in tried]),
        "steps lost": _spread([one["steps_lost"] for one in tried if one["moving"]]),
        "left": str(sum(len(one["left"]) for one in tried)),
    }


def _machine(found: dict[str, Any]) -> str:
    amx = "with AMX" if found["amx"] else "without AMX"
    return f"{found['cores']} cores of {found['cpu']}, {amx}, Linux {found['kernel']}"


def _spread(values: Sequence[float | None]) -> str:
    """Return the median and the maximum."""
    known = [value for value in values if value is not None]
    return f"{median(known):.3g}, {max(known):.3g}" if known else "-"
