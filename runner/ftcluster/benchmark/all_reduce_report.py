"""The result of `bench allreduce`, as a JSON document and as text. Pure functions only.

The bus bandwidth of n ranks is 2 (n - 1) / n x bytes / time, as defined by nccl-tests. With any
algorithm, each rank must send and receive at least 2 (n - 1) / n x bytes in total.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from ftcluster.benchmark.all_reduce import Bench, MeasurementEvents, size_text
from ftcluster.launch.run import host_of
from ftcluster.planning.batch import BUCKET
from ftcluster.planning.network import host_bytes, nominal_mbits
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned
from ftcluster_common.protocol.launch import GLOO, MPI

BUSY = 0.25  # running processes per CPU; above this, a measurement is unreliable

JsonObject = Mapping[str, Any]


def document(bench: Bench, measured: MeasurementEvents, seconds: float) -> dict[str, Any]:
    """Return the JSON document that `bench allreduce --json` prints."""
    plan = bench.run.plan
    links = [
        {**{key: link[key] for key in ("latency_us", "mb_per_second")}, "hosts": hosts}
        for link in measured.links
        for hosts in [[host_of(plan, rank) for rank in link["ranks"]]]
    ]
    mbits = nominal_mbits(bench.hosts) if len(bench.hosts) > 1 else None
    slowest = min((link["mb_per_second"] for link in links), default=None)
    speed = mbits / 8 if mbits else slowest
    rows = [
        {
            "bytes": event["bytes"],
            "type": event["type"],
            "turns": event["turns"],
            "times": times(event, plan.world_size, len(plan.hosts), speed),
        }
        for event in measured.times
        if not event["left_out"]
    ]
    left_out = [
        {key: event[key] for key in ("bytes", "type")} | {"why": event["left_out"]}
        for event in measured.times
        if event["left_out"]
    ]
    left_out += [{"bytes": size, "type": None, "why": why} for size, why in bench.left_out.items()]
    return {
        "run": bench.run.id,
        "state": "done",
        "stack": bench.stack,
        "hosts": [{"name": host.name, "ranks": host.ranks} for host in plan.hosts],
        "world_size": plan.world_size,
        "provider": plan.provider or None,
        "interface_mbits": mbits,
        "mb_per_second": slowest,
        "links": links,
        "sizes": rows,
        "left_out": left_out,
        "large": large(rows),
        "load": max((event["load"] for event in measured.times), default=0.0),
        "seconds": seconds,
    }


def times(
    event: JsonObject, ranks: int, hosts: int, network: float | None
) -> dict[str, dict[str, Any]]:
    """Return the time, bandwidth and ratios to other backends, by backend.

    Args:
        network: speed of a host in MB/s; None if it is unknown or there is only one host.
    """
    ms = event["milliseconds"]
    backends = {}
    for name, milliseconds in ms.items():
        rate = event["bytes"] / (milliseconds * 1e6)  # GB/s
        sent = host_bytes(event["bytes"], hosts) / (milliseconds * 1000)  # MB/s
        backends[name] = {
            "ms": round(milliseconds, 4),
            "spread": event["spread"].get(name, 0.0),
            "bus_gb_per_second": round(2 * (ranks - 1) / ranks * rate, 4),
            "of_gloo": round(milliseconds / ms[GLOO], 3) if GLOO in ms else None,
            "of_mpi": round(milliseconds / ms[MPI], 3) if MPI in ms else None,
            "of_network": round(sent / network, 3) if network else None,
        }
    return backends


def large(rows: Sequence[JsonObject]) -> dict[str, Any] | None:
    """Return the fastest backend for sizes of at least BUCKET, with its mean ratios to the others.

    Returns None if there are no such sizes.
    """
    rows = [row["times"] for row in rows if row["bytes"] >= BUCKET]
    if not rows:
        return None
    mean = {
        name: geometric_mean(row[name]["ms"] for row in rows) for name in rows[0] if name != MPI
    }
    fastest = min(mean, key=lambda name: mean[name])
    ratios = {
        key: round(geometric_mean(row[fastest]["ms"] / row[other]["ms"] for row in rows), 3)
        if other in rows[0]
        else None
        for key, other in (("of_gloo", GLOO), ("of_mpi", MPI))
    }
    won = sum(row[fastest]["ms"] == min(row[name]["ms"] for name in mean) for row in rows)
    return {"fastest": fastest, "rows": len(rows), "fastest_in": won, **ratios}


def fp32_times(result: JsonObject, value: str) -> dict[int, dict[str, float]]:
    """Return a value of the fp32 rows by size in bytes and backend; {} if the hosts were busy.

    Args:
        value: name of the value, such as `ms`.
    """
    rows = [row for row in result["sizes"] if row["type"] == "fp32"]
    return {
        row["bytes"]: {name: of[value] for name, of in row["times"].items() if name != MPI}
        for row in (rows if result["load"] <= BUSY else ())
    }


def lines(result: JsonObject) -> Iterator[str]:
    """Format the document for a terminal, line by line."""
    ranks = counted(result["world_size"], "rank")
    yield (
        f"stack {result['stack']}, {ranks} on {counted(len(result['hosts']), 'host')}; bus "
        "bandwidth = 2 (n - 1) / n x bytes / time"
    )
    if result["links"]:
        yield _network(result)
    yield ""
    if result["sizes"]:
        names = list(result["sizes"][0]["times"])
        head = ["size", "type", *(cell for name in names for cell in _heads(name, names))]
        shared = result["sizes"][0]["times"][names[0]]["of_network"] is not None
        rows = [[*_row(row, names), *_share(row, shared)] for row in result["sizes"]]
        yield from aligned([[*head, *(["of network"] if shared else [])], *rows])
        yield ""
    for size in result["left_out"]:
        kind = f" in {size['type']}" if size["type"] else ""
        yield f"skipped: {size_text(size['bytes'])}{kind}: {size['why']}"
    if large_sizes := result["large"]:
        ratios = [
            f"{large_sizes[key]:.2f} of {of}'s time"
            for key, of in (("of_gloo", "gloo"), ("of_mpi", "MPI"))
            if large_sizes[key] is not None and large_sizes["fastest"] != of
        ]
        means = f", on average {' and '.join(ratios)}" if ratios else ""
        won = f"in {large_sizes['fastest_in']} of {counted(large_sizes['rows'], 'row')}"
        yield (
            f"for sizes of at least {size_text(BUCKET)}, {large_sizes['fastest']} is the fastest "
            f"{won}{means}"
        )
    if result["load"] > BUSY:
        yield (
            "the result was not saved for later plans, because the hosts were busy before the "
            f"measurement ({result['load']:.1f} processes per CPU); measure again when they are "
            "idle"
        )


def _network(result: JsonObject) -> str:
    slowest = min(result["links"], key=lambda link: link["mb_per_second"])
    nominal = result["interface_mbits"]
    interface = f"; the slowest interface has {nominal:.0f} Mbit/s" if nominal else ""
    return (
        f"network: {result['provider']}; the slowest of {counted(len(result['links']), 'pair')} of "
        f"hosts, {' and '.join(slowest['hosts'])}, reaches {slowest['mb_per_second']:.0f} MB/s "
        f"with a latency of {slowest['latency_us']:.0f} us{interface}"
    )


def _heads(name: str, names: Sequence[str]) -> list[str]:
    title = "MPI" if name == MPI else name
    compared = [f"/ {title_of}" for key, title_of in _compared(name, names)]
    return [f"{title} ms", "GB/s", *compared]


def _compared(name: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the backends that a backend is compared with: key in the document, and title."""
    return [
        (key, title)
        for other, key, title in ((GLOO, "of_gloo", "gloo"), (MPI, "of_mpi", "MPI"))
        if other in names and name not in (GLOO, MPI)
    ]


def _row(row: JsonObject, names: Sequence[str]) -> list[str]:
    cells = [size_text(row["bytes"]), row["type"]]
    for name in names:
        times = row["times"][name]
        cells += [
            f"{times['ms']:.4g} ±{times['spread'] / 2:.0%}",
            f"{times['bus_gb_per_second']:.3g}",
        ]
        cells += [f"{times[key]:.2f}" for key, _ in _compared(name, names)]
    return cells


def _share(row: JsonObject, shared: bool) -> list[str]:
    """Return the fraction of the network's speed that the fastest backend reaches."""
    return [f"{max(times['of_network'] for times in row['times'].values()):.0%}"] if shared else []
