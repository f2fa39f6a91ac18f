"""Detection of hosts and links that are slower than the others. Pure functions only."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_high, median_low
from typing import Any

from ftcluster_common.protocol.finding import Finding

SLOW_HOST = 0.8  # fraction of the median of hosts with the same CPU
SLOW_OF_PEAK = 0.6  # fraction of the fp32 peak; 0.8 to 0.95 is usual
SLOW_DISK = 0.5  # fraction of the median of the other hosts
LOW_CPU_SHARE = 0.85  # fraction of the CPU time that the threads could have used
HIGH_LOAD = 0.5  # load average per thread, before the measurement
STOLEN_SHARE = 0.03  # fraction of CPU time taken by the hypervisor
LOW_FREQUENCY = 0.9  # fraction of the other hosts' frequency
SLOW_LINK = 2.0  # factor by which a slow link is worse than the usual link
IGNORED_LATENCY_US = 500.0  # extra latency that is harmless: collectives take milliseconds
SLOW_SHARE_OF_NOMINAL = 0.5
STREAM_MBITS = 10_000  # upper limit of one TCP stream
MAX_LINKS = 5  # most links that are reported one by one
CHECK_LINK = (
    "check duplex and autonegotiation (ethtool), cable and switch port, that hosts and switch have "
    "the same MTU, other traffic, and whether ftcluster_address names the fastest network"
)
CHECK_MEMORY = (
    "check that all memory channels are populated (dmidecode -t memory), and look for other "
    "programs"
)
CHECK_DISK = (
    "look for other programs that write to it and for errors (dmesg), and check its health "
    "(smartctl -a)"
)

Row = Mapping[str, Any]


def relative_speeds(hosts: Sequence[Row]) -> dict[str, float | None]:
    """Return each host's GFLOP/s per core, relative to the median of hosts with the same CPU.

    The precision is the same as in training: bf16 if every host has instructions for it, else
    fp32. The value is None for a host that was not measured, or that is the only host with its CPU.
    """
    precision = _precision(hosts)
    relative: dict[str, float | None] = {}
    for host in hosts:
        speeds = [_per_core(other, precision) for other in _with_same_cpu(host, hosts)]
        usual = median_high(speeds) if len(speeds) > 1 else 0.0
        relative[host["name"]] = round(_per_core(host, precision) / usual, 3) if usual else None
    return relative


def slow_hosts(hosts: Sequence[Row]) -> list[Finding]:
    """Return hosts that all others would wait for in every step."""
    precision, relative_speed = _precision(hosts), relative_speeds(hosts)
    findings = []
    for host in hosts:
        relative = relative_speed[host["name"]]
        if relative is not None and relative < SLOW_HOST:
            same = _with_same_cpu(host, hosts)
            what = (
                f"{host['speed'][f'{precision}_gflops']:.0f} GFLOP/s in {precision}, "
                f"{100 - 100 * relative:.0f} % less per core than the median of the {len(same)} "
                "hosts with this CPU; all others wait for it in every step"
            )
            others = [other for other in same if other is not host]
            hint = "; ".join(reasons(host, others))
            findings.append(Finding(host["name"], what, hint, "straggler"))
    return findings


def below_peak(hosts: Sequence[Row]) -> list[Finding]:
    """Return hosts whose fp32 matmuls are far below the CPU's peak without other load.

    This needs no other hosts for comparison. Matmuls in bf16 are not judged: with AMX they usually
    reach a fifth to a half of the peak.
    """
    return [
        Finding(
            host["name"],
            f"matrix multiplication in fp32 reaches {share:.0%} of the CPU's peak "
            f"({host['speed']['fp32_gflops']:.0f} GFLOP/s); 80 to 95 % is usual",
            "look for limits on instructions (ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS), for "
            "other programs that use the caches or the other hardware threads (top), and check "
            "again",
            "kernel",
        )
        for host in hosts
        if (share := (host["speed"] or {}).get("fp32_of_peak"))
        and share < SLOW_OF_PEAK
        and host["speed"]["cpu_share"] >= LOW_CPU_SHARE
    ]


def slow_memory_and_disks(hosts: Sequence[Row]) -> list[Finding]:
    """Return hosts whose memory or disk is slower than the others'."""
    findings = []
    for host in hosts:
        speed = host["speed"]
        if not speed:
            continue
        others = [other["speed"] for other in hosts if other["speed"] and other is not host]
        same = [other for other in others if other["cpu"] == speed["cpu"]]
        for key, unit, rows, limit, hint in (
            ("memory_gb_per_second", "GB/s of memory", same, SLOW_HOST, CHECK_MEMORY),
            ("disk_mb_per_second", "MB/s written to disk", others, SLOW_DISK, CHECK_DISK),
        ):
            measured = [row[key] for row in rows if row[key]]
            if speed[key] and measured and speed[key] < limit * median_low(measured):
                what = f"{speed[key]:.0f} {unit}, but {median_low(measured):.0f} on the other hosts"
                findings.append(Finding(host["name"], what, hint, "straggler"))
    return findings


def reasons(host: Row, others: Sequence[Row]) -> list[str]:
    """Return the measured reasons for a slow host; if there are none, return what to compare."""
    measured = list(_measured_reasons(host["speed"], [other["speed"] for other in others]))
    return measured or [
        f"nothing measured explains it (load average {host['speed']['load_average']:g}); "
        "compare with another host: its frequency (turbostat), cooling, power profile and SNC in "
        "the BIOS, memory in all channels (dmidecode -t memory), microcode"
    ]


def _measured_reasons(speed: Row, others: Sequence[Row]) -> Iterator[str]:
    usual_share = median_high(other["cpu_share"] for other in others)
    if speed["stolen_share"] > STOLEN_SHARE:
        yield (
            f"the hypervisor gave {speed['stolen_share']:.0%} of its CPU time to others: "
            "ask for a dedicated host"
        )
    elif speed["cpu_share"] < LOW_CPU_SHARE and speed["cpu_share"] < LOW_CPU_SHARE * usual_share:
        yield (
            f"its threads got {speed['cpu_share']:.0%} of the CPU time they asked for (the others' "
            f"{usual_share:.0%}): look for other programs and a CPU quota"
        )
    if speed["load_average"] > HIGH_LOAD * speed["threads"]:
        yield (
            f"before the benchmark its load average was {speed['load_average']:g}, high for "
            f"{speed['threads']} threads: look for other programs (top)"
        )
    usual_mhz = [other["mhz"] for other in others if other["mhz"]]
    if speed["throttled"]:
        yield "its CPU was throttled because of heat: check fans and air flow"
    if speed["mhz"] and usual_mhz and speed["mhz"] < LOW_FREQUENCY * median_low(usual_mhz):
        yield (
            f"it ran at {speed['mhz']} MHz, the others at {median_low(usual_mhz)}: check its power "
            "profile and governor, and look for other load"
        )
    governors = {other["governor"] for other in others} - {""}
    if speed["governor"] and governors and speed["governor"] not in governors:
        yield (
            f"its frequency governor is {speed['governor']}, but the other hosts use "
            f"{', '.join(sorted(governors))}"
        )
    nodes = {other["numa_nodes"] for other in others}
    if speed["numa_nodes"] not in nodes:
        counts = ", ".join(map(str, sorted(nodes)))
        yield (
            f"it has {speed['numa_nodes']} NUMA nodes, the others {counts}: check SNC in its BIOS"
        )


def slow_links(links: Sequence[Row], mbits: Mapping[str, int | None]) -> list[Finding]:
    """Return the slow links, slowest first; only one finding for a host whose links are all slow.

    A link is slow if it reaches less than half of the nominal speed of its interfaces. If the
    nominal speed is unknown, the usual speed takes its place. The usual speed is the median over
    the hosts of each host's best link. A median over all links would mislead: if one of three hosts
    is slow, most links are slow.

    Args:
        links: rows with hosts (two names), latency_us and mb_per_second.
        mbits: nominal speed of each host's interface, None if it is unknown.
    """
    if not links:
        return []
    hosts = list(dict.fromkeys(host for link in links for host in link["hosts"]))
    of = {host: [link for link in links if host in link["hosts"]] for host in hosts}
    speed = median_high(max(link["mb_per_second"] for link in of[host]) for host in hosts)
    latency = median_low(min(link["latency_us"] for link in of[host]) for host in hosts)

    def badness(link: Row) -> float:
        """Return how many times worse than the limit a link is; above 1 the link is slow."""
        nominal = _nominal(link, mbits)
        limit = SLOW_SHARE_OF_NOMINAL * nominal if nominal else speed / SLOW_LINK
        late = link["latency_us"] / (SLOW_LINK * latency)
        return float(max(
            limit / link["mb_per_second"],
            late if link["latency_us"] > latency + IGNORED_LATENCY_US else 0,
        ))  # fmt: skip

    bad = sorted((link for link in links if badness(link) > 1), key=badness, reverse=True)
    usual = f"usual here are {_mb(speed)} and {latency:.0f} us"

    def compared(slow: Sequence[Row]) -> str:
        """Return a text with the rates of slow links, worst first, and the expected rates."""
        expected = [_promised(slow[0], mbits), "" if len(slow) == len(links) else usual]
        return "; ".join([_range(slow), *filter(None, expected)])

    if len(bad) == len(links) > 1:  # no link is as fast as usual
        worst = " to ".join(bad[0]["hosts"])
        what = f"all {len(links)} links are slow, worst {worst}: {compared(bad)}"
        return [Finding("", what, CHECK_LINK, "link")]
    findings = []
    whole = [host for host in hosts if len(of[host]) > 1 and all(link in bad for link in of[host])]
    for host in whole:
        of_host = [link for link in bad if host in link["hosts"]]
        what = f"all of its links are slow: {compared(of_host)}"
        findings.append(Finding(host, what, CHECK_LINK, "link"))
    rest = [link for link in bad if not any(host in link["hosts"] for host in whole)]
    for link in rest[:MAX_LINKS]:
        first, other = link["hosts"]
        what = f"its link to {other} is slow: {compared([link])}"
        findings.append(Finding(first, what, CHECK_LINK, "link"))
    if len(rest) > MAX_LINKS:
        what = f"{len(rest) - MAX_LINKS} more links of {len(links)} are slow"
        findings.append(Finding("", what, CHECK_LINK, "link"))
    return findings


def _with_same_cpu(host: Row, hosts: Sequence[Row]) -> list[Row]:
    """Return the measured hosts with the same CPU, including the host itself."""
    if not host.get("speed"):
        return []
    return [
        other
        for other in hosts
        if other.get("speed") and other["speed"]["cpu"] == host["speed"]["cpu"]
    ]


def _precision(hosts: Sequence[Row]) -> str:
    """Return the precision of training on all of these hosts."""
    measured = [host["speed"] for host in hosts if host.get("speed")]
    return "bf16" if all(speed["bf16_gflops"] for speed in measured) else "fp32"


def _per_core(host: Row, precision: str) -> float:
    return float(host["speed"][f"{precision}_gflops"]) / int(host["speed"]["threads"])


def _nominal(link: Row, mbits: Mapping[str, int | None]) -> float:
    """Return the MB/s that one stream can reach between a link's interfaces; 0 if unknown."""
    speeds = [mbits.get(host) or 0 for host in link["hosts"]]
    return min(STREAM_MBITS, *speeds) / 8


def _promised(link: Row, mbits: Mapping[str, int | None]) -> str:
    """Return a phrase with the nominal speed of a link's interfaces; "" if unknown."""
    stream = _nominal(link, mbits)
    if not stream:
        return ""
    slower = min(mbits[host] or 0 for host in link["hosts"])
    return f"the interfaces have {slower / 1000:g} Gbit/s, of which a stream can take {_mb(stream)}"


def _range(links: Sequence[Row]) -> str:
    speeds = sorted(link["mb_per_second"] for link in links)
    times = sorted(link["latency_us"] for link in links)
    if len(links) == 1:
        return f"{_mb(speeds[0])}, {times[0]:.0f} us"
    return f"{speeds[0]:.0f} to {_mb(speeds[-1])}, {times[0]:.0f} to {times[-1]:.0f} us"


def _mb(speed: float) -> str:
    return f"{speed:.0f} MB/s" if speed >= 10 else f"{speed:.1f} MB/s"
