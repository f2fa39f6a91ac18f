# Apache-2.0 (see LICENSE)
"""The schema of verify's report; the report is not trusted, because the head writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.ftcluster.cluster.plugins.plugin_utils.host_answer import (
    Lines,
    known_facts,
)


@dataclass(frozen=True)
class FindingSchema:
    """A problem or warning; `host` is "" if the finding concerns all hosts."""

    host: str
    what: Lines
    hint: Lines
    kind: str


@dataclass(frozen=True)
class SpeedSchema:
    """A host's measured speeds, and possible causes of slowness."""

    bf16_gflops: float | None
    fp32_gflops: float | None
    bf16_of_peak: float | None
    fp32_of_peak: float | None
    memory_gb_per_second: float | None
    disk_mb_per_second: float | None
    cpu: str
    threads: int
    load_average: float
    mhz: float | None
    relative: float | None


@dataclass(frozen=True)
class CallsSchema:
    """The connections to a host's ports, by port, and the seconds that the ports were open."""

    seconds: float
    came: dict[str, list[str]]


@dataclass(frozen=True)
class HostRowSchema:
    """A host that has responded."""

    name: str
    address: str
    hostname: str
    python: str
    kernel: str
    versions: dict[str, str]
    interface: str
    interface_mbits: int | None
    speed: SpeedSchema | None
    calls: CallsSchema | None


@dataclass(frozen=True)
class LinkSchema:
    """The measurements of a pair of hosts."""

    hosts: list[str]
    latency_us: float
    mb_per_second: float


@dataclass(frozen=True)
class VerifyReportSchema:
    """The output of `python -m ftcluster_train.health.verify`."""

    hosts: list[HostRowSchema]
    problems: list[FindingSchema]
    warnings: list[FindingSchema]
    packages: int
    all_reduce_ms: float | None
    backends: dict[str, float]
    large: dict[str, float]
    links: list[LinkSchema]


def read_report(text: str, names: Iterable[str]) -> dict[str, Any]:
    """Parse and validate a report.

    Args:
        text: output of verify.
        names: names of the hosts that the report may contain.

    Raises:
        ValueError: the text is not a valid report; the message lists all problems in one line.
    """
    try:
        answer = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    report, wrong = known_facts(answer, VerifyReportSchema)
    if wrong := wrong or list(_wrong_hosts(report, set(names))):
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError("; ".join(wrong[:3]) + more)
    return report


def _wrong_hosts(report: dict[str, Any], names: set[str]) -> Iterator[str]:
    rows = [row["name"] for row in report["hosts"]]
    if len(set(rows)) < len(rows):
        yield "a host is listed twice"
    found = report["problems"] + report["warnings"]
    named = {*rows, *(one["host"] for one in found if one["host"])}
    for link in report["links"]:
        named.update(link["hosts"])
        if len(set(link["hosts"])) != 2:
            yield "a link is not between two hosts"
    if others := named - names:
        yield f"{min(others)[:60]!a} is not a host of the request"
    if len(rows) > 1 and not report["problems"] and report["all_reduce_ms"] is None:
        yield "it contains neither problems nor an all-reduce"
