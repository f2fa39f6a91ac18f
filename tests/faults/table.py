"""docs/reliability.md of the results."""

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench import scale_page
from tests.faults.campaign import survived
from tests.faults.injections import FAULTS

WHERE = {
    "localhost": "one host, two ranks", "hosts": "three hosts", "16 ranks": "four hosts, 16 ranks",
}  # fmt: skip
Results = Sequence[dict[str, Any]]


def machine() -> dict[str, Any]:
    """What the results were measured on."""
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
    return [json.loads(line) for line in path.read_text().splitlines()]


def page(results: Results) -> str:
    """The page, in Markdown."""
    template = Path(__file__).with_name("page.md").read_text()
    machines = [one for one in results if one["kind"] == "machine"]
    faults = [one for one in results if one["kind"] == "fault"]
    tried = {(one["place"], one["fault"]) for one in faults}
    untried = []
    for place, where in WHERE.items():
        there = {name: fault.title for name, fault in FAULTS.items() if place in fault.places}
        left = [title for name, title in there.items() if (place, name) not in tried]
        what = "all" if len(left) == len(there) else ", ".join(left)
        untried += [f"{what} ({where})"] if left else []
    runs = [one for one in results if one["kind"] == "run"]
    return template.format(
        scale=scale_page.tables(scale_page.read()),
        machine="; later ".join(dict.fromkeys(map(_machine, machines))),
        faults=len(faults),
        notes="".join(f"- {one['text']}\n" for one in results if one["kind"] == "note"),
        untried="; ".join(untried) or "none",
        survived=sum(survived(one) for one in faults),
        runs=len(runs),
        table="\n".join(_rows(faults)),
        weights=sum(one["weights_compared"] for one in runs),
        weights_differing=sum(len(one["weights_differing"]) for one in runs),
        loss=f"{max((one['loss_differs'] for one in runs), default=0):.2%}",
        samples_lost=sum(one["samples_lost"] for one in runs),
        samples_extra=sum(one["samples_extra"] for one in runs),
        checkpoints_lost=sum(one["checkpoint_lost"] for one in faults),
        left=sum(len(one["left"]) for one in (*runs, *faults)),
    )


def _machine(found: dict[str, Any]) -> str:
    amx = "with AMX" if found["amx"] else "without AMX"
    return f"{found['cores']} cores of {found['cpu']}, {amx}, Linux {found['kernel']}"


def _rows(faults: Results) -> list[str]:
    rows = []
    for place, where in WHERE.items():
        for name, fault in FAULTS.items():
            found = [one for one in faults if (one["fault"], one["place"]) == (name, place)]
            if found:
                cells = (
                    fault.title, where, len(found), sum(map(survived, found)),
                    sum(one["named"] for one in found),
                    _spread([one["noticed"] for one in found]),
                    _spread([one["moving"] for one in found]),
                    _spread([one["steps_lost"] for one in found if one["moving"]]),
                    sum(len(one["left"]) for one in found),
                )  # fmt: skip
                rows.append(f"| {' | '.join(map(str, cells))} |")
    return rows


def _spread(values: Sequence[float | None]) -> str:
    """Median and the largest."""
    known = [value for value in values if value is not None]
    return f"{median(known):.3g}, {max(known):.3g}" if known else "-"
