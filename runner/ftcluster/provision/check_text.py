"""Formats the JSON document of `ftcluster check` as text. Pure functions only."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftcluster.progress.format import duration
from ftcluster.text.host_names import with_host
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned

MATRIX_HOSTS = 8  # a larger matrix would not fit a terminal's width
WORST_PAIRS = 3
HEADS = (
    "host", "address", "CPU", "cores", "memory", "network", "torch", "computes with",
    "bf16 GFLOP/s", "of peak", "fp32 GFLOP/s", "of peak", "of median",
    "memory GB/s", "disk MB/s", "of own", "load",
)  # fmt: skip

JsonObject = Mapping[str, Any]


def lines(document: JsonObject) -> Iterator[str]:
    """Yield the lines of the whole result."""
    failed = {finding["host"] for finding in document["problems"] if finding["kind"] == "ansible"}
    rows = (_row(host, host["name"] in failed) for host in document["hosts"])
    yield from table([HEADS, *rows])
    pairs = document["pairs"]
    if pairs:
        yield ""
        yield from _network(document)
        names = list(dict.fromkeys(name for pair in pairs for name in pair["hosts"]))
        if 2 < len(names) <= MATRIX_HOSTS:
            yield from table(matrix(names, pairs))
    for key in ("problems", "warnings"):
        if document[key]:
            yield ""
            yield f"{key}:"
            yield from _findings(document[key])
    yield ""
    yield summary(document)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines; skip columns that contain only a heading."""
    used = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    return aligned([row[column] for column in used] for row in rows)


def matrix(names: Sequence[str], pairs: Sequence[JsonObject]) -> list[list[str]]:
    """Return a matrix of all pairs of hosts: latency above the diagonal, bandwidth below it."""
    of = {tuple(pair["hosts"]): pair for pair in pairs}

    def cell(row: int, column: int) -> str:
        key = (names[min(row, column)], names[max(row, column)])
        pair = of.get(key) or of.get(key[::-1])
        if row == column or not pair:
            return "-"
        if row < column:
            return f"{pair['latency_us']:.0f}"
        return _mb(pair["mb_per_second"])

    everyone = range(len(names))
    return [
        ["us \\ MB/s", *names],
        *([names[row], *(cell(row, column) for column in everyone)] for row in everyone),
    ]


def summary(document: JsonObject) -> str:
    """Return the summary, which is the last line of the text."""
    counts = [counted(len(document["hosts"]), "host")]
    for key in ("problems", "warnings"):
        if document[key]:
            counts.append(counted(len(document[key]), key[:-1]))
    return f"{document['state']}: {', '.join(counts)}, {duration(document['seconds'])}"


def one_line(document: JsonObject) -> str:
    """Return the summary with the first finding in one line, for mail from cron."""
    first = [*document["problems"], *document["warnings"]][:1]
    texts = [": ".join(filter(None, (finding["host"], finding["what"]))) for finding in first]
    return "; ".join([summary(document), *texts]).replace("\n", " ")


def _row(host: JsonObject, failed: bool) -> tuple[str, ...]:
    speed = host["speed"] or {}
    generation, memory, mbits = host["generation"], host["memory_bytes"], host["interface_mbits"]
    relative = speed.get("relative")
    return (
        host["name"],
        host["address"] if host["answers"] else "failed" if failed else "does not answer",
        generation if generation not in ("", "other") else host["cpu"],
        str(host["cores"] or ""),
        f"{memory / 1e9:.0f} GB" if memory else "",
        host["interface"] + (f" {mbits / 1000:g} Gbit/s" if mbits else ""),
        host["versions"].get("torch", ""),
        host["computes_with"],
        *_rates(speed),
        f"{relative:.2f}" if relative else "",
        *(
            f"{speed[key]:.0f}" if speed.get(key) else ""
            for key in ("memory_gb_per_second", "disk_mb_per_second")
        ),
        f"{host['of_own_median']:.2f}" if host.get("of_own_median") else "",
        f"{speed['load_average']:.1f}" if speed else "",
    )


def _rates(speed: JsonObject) -> Iterator[str]:
    """Yield the GFLOP/s of each precision, with the fraction of the CPU's peak."""
    for precision in ("bf16", "fp32"):
        rate, share = speed.get(f"{precision}_gflops"), speed.get(f"{precision}_of_peak")
        yield f"{rate:.0f}" if rate else ""
        yield f"{share:.0%}" if share else ""


def _network(document: JsonObject) -> Iterator[str]:
    pairs, slow = document["pairs"], document["mb_per_second"]
    late = document["latency_us"]
    if len(pairs) == 1:
        first, second = pairs[0]["hosts"]
        yield f"{first} to {second}: {late['max']:.0f} us, {_mb(slow['min'])} MB/s"
        return
    times = " / ".join(f"{late[key]:.0f}" for key in ("min", "median", "max"))
    speeds = " / ".join(_mb(slow[key]) for key in ("min", "median", "max"))
    yield f"{len(pairs)} pairs (min / median / max): {times} us, {speeds} MB/s"
    worst = sorted(pairs, key=lambda pair: float(pair["mb_per_second"]))[:WORST_PAIRS]
    yield "slowest: " + ", ".join(
        f"{' to '.join(pair['hosts'])} {_mb(pair['mb_per_second'])} MB/s" for pair in worst
    )


def _findings(findings: Sequence[JsonObject]) -> Iterator[str]:
    """Yield a line for each finding with its hosts; show a hint that findings share only once."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        hosts.setdefault((finding["hint"], finding["what"]), []).append(finding["host"])
    for hint in dict.fromkeys(hint for hint, _ in hosts):
        for what in [what for same, what in hosts if same == hint]:
            where = ", ".join(name for name in hosts[hint, what] if name)
            first, *rest = (with_host(where, what) if where else what).splitlines()
            yield f"  {first}"
            yield from (f"    {line}" for line in rest)
        if hint:
            yield f"    {hint}"


def _mb(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
