"""Which hosts and links are slower than the others, and what to look at. Pure functions only."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median_high, median_low
from typing import Any

from ftcluster_common.finding import Finding

STRAGGLER = 0.8  # of the median of hosts with the same CPU
GIVEN_CPU = 0.85  # of the CPU time that the threads could have had
IDLE_LOAD = 0.5  # of a load of one a core
STOLEN = 0.03
FREQUENCY = 0.9  # of the others'
WORSE = 2.0  # than what is usual
WORSE_BY_US = 500.0  # less does not matter beside collectives that take milliseconds
# One TCP stream fills 10 Gbit/s, hardly more; and a CPU that is busy gets a part of it.
STREAM_MBITS, OF_NOMINAL = 10_000, 0.25
GOOD_OF_NOMINAL = 0.5  # not slow, whatever the others are
NAMED = 5  # links; of more there is only the number

Row = Mapping[str, Any]


def relative_speeds(hosts: Sequence[Row]) -> dict[str, float | None]:
    """For each host its GFLOP/s a core over the median of hosts with the same CPU.

    In the precision that training takes: bf16 where every host has instructions for it, else fp32.
    None for a host without its like, or not measured.
    """
    precision = _precision(hosts)
    found: dict[str, float | None] = {}
    for host in hosts:
        speeds = [_per_core(other, precision) for other in _like(host, hosts)]
        usual = median_high(speeds) if len(speeds) > 1 else 0.0
        found[host["name"]] = round(_per_core(host, precision) / usual, 3) if usual else None
    return found


def stragglers(hosts: Sequence[Row]) -> list[Finding]:
    """Hosts that all others would wait for in every step."""
    precision = _precision(hosts)
    findings = []
    for host in hosts:
        relative = relative_speeds(hosts)[host["name"]]
        if relative is not None and relative < STRAGGLER:
            like = _like(host, hosts)
            what = (
                f"{host['speed'][f'{precision}_gflops']:.0f} GFLOP/s in {precision}, "
                f"{100 - 100 * relative:.0f} % less a core than the median of the {len(like)} "
                "hosts with this CPU; all others wait for it in every step"
            )
            others = [other for other in like if other is not host]
            hint = "; ".join(clues(host, others))
            findings.append(Finding(host["name"], what, hint, "straggler"))
    return findings


def clues(host: Row, others: Sequence[Row]) -> list[str]:
    """What to look at on a slow host: what was seen there, else all that it can be."""
    found = list(_seen(host["speed"], [other["speed"] for other in others]))
    return found or [
        f"nothing was seen that explains it (load average {host['speed']['load_average']:g}); "
        "compare with another host: its frequency (turbostat), cooling, power profile and SNC in "
        "the BIOS, memory in all channels (dmidecode -t memory), microcode"
    ]


def _seen(speed: Row, others: Sequence[Row]) -> Iterator[str]:
    usual_share = median_high(other["cpu_share"] for other in others)
    if speed["stolen_share"] > STOLEN:
        yield (
            f"the hypervisor gave {speed['stolen_share']:.0%} of its CPU time to others: "
            "ask for a host of its own"
        )
    elif speed["cpu_share"] < GIVEN_CPU and speed["cpu_share"] < GIVEN_CPU * usual_share:
        yield (
            f"its threads got {speed['cpu_share']:.0%} of the CPU time they asked for (the others' "
            f"{usual_share:.0%}): look for other programs and for a quota of its CPU"
        )
    if speed["load_average"] > IDLE_LOAD * speed["threads"]:
        yield (
            f"its load average was {speed['load_average']:g} for {speed['threads']} threads "
            "before: look for other programs (top)"
        )
    known = [other["mhz"] for other in others if other["mhz"]]
    if speed["throttled"]:
        yield "it slowed itself down for its heat meanwhile: look at fans and air flow"
    if speed["mhz"] and known and speed["mhz"] < FREQUENCY * median_low(known):
        yield (
            f"it ran at {speed['mhz']} MHz, the others at {median_low(known)}: look at its power "
            "profile and governor, and for other load"
        )
    governors = {other["governor"] for other in others} - {""}
    if speed["governor"] and governors and speed["governor"] not in governors:
        yield f"its governor is {speed['governor']}, the others' {', '.join(sorted(governors))}"
    nodes = {other["numa_nodes"] for other in others}
    if speed["numa_nodes"] not in nodes:
        counts = ", ".join(map(str, sorted(nodes)))
        yield (
            f"it has {speed['numa_nodes']} NUMA nodes, the others {counts}: look at SNC in its BIOS"
        )


def slow_links(links: Sequence[Row], mbits: Mapping[str, int | None]) -> list[Finding]:
    """Links that all-reduces wait for, the worst first; a host whose links all are, by itself.

    What is usual is the median of what each host has with its best partner: with three hosts of
    which one is slow, most links are.

    Args:
        links: hosts (two names), latency_us and mb_per_second of each.
        mbits: the nominal speed of each host's interface, None where its driver does not know it.
    """
    if not links:
        return []
    hosts = list(dict.fromkeys(host for link in links for host in link["hosts"]))
    of = {host: [link for link in links if host in link["hosts"]] for host in hosts}
    speed = median_high(max(link["mb_per_second"] for link in of[host]) for host in hosts)
    latency = median_low(min(link["latency_us"] for link in of[host]) for host in hosts)

    def badness(link: Row) -> float:
        """By which factor it is worse than it may be; more than 1 is bad."""
        nominal = _nominal([mbits.get(host) for host in link["hosts"]])
        late = link["latency_us"] / (WORSE * latency)
        slow = max(speed / WORSE, nominal * OF_NOMINAL) / link["mb_per_second"]
        if nominal and link["mb_per_second"] >= GOOD_OF_NOMINAL * nominal:
            slow = 0
        return float(max(slow, late if link["latency_us"] > latency + WORSE_BY_US else 0))

    bad = sorted((link for link in links if badness(link) > 1), key=badness, reverse=True)
    if len(bad) == len(links) > 1:  # so none can be called usual
        nominal = max(_nominal([mbits.get(host) for host in link["hosts"]]) for link in links)
        promised = f"an interface promises {_mb(nominal)}"
        what = f"all {len(links)} links are slow: {_range(links)}; {promised}"
        return [Finding("", what, LOOK, "link")]
    usual = f"usual here are {_mb(speed)} and {latency:.0f} us"
    if len(links) == 1:
        usual = f"the interface promises {_mb(_nominal([mbits.get(host) for host in hosts]))}"
    whole = [host for host in hosts if len(of[host]) > 1 and all(link in bad for link in of[host])]
    findings = [
        Finding(host, f"all of its links are slow: {_range(of[host])}; {usual}", LOOK, "link")
        for host in whole
    ]
    rest = [link for link in bad if not any(host in link["hosts"] for host in whole)]
    for link in rest[:NAMED]:
        one, other = link["hosts"]
        what = f"its link to {other} is slow: {_range([link])}; {usual}"
        findings.append(Finding(one, what, LOOK, "link"))
    if len(rest) > NAMED:
        what = f"{len(rest) - NAMED} more links of {len(links)} are slow"
        findings.append(Finding("", what, LOOK, "link"))
    return findings


LOOK = (
    "look at cable and switch port, at the speed that the interface has negotiated (ethtool), at "
    "other traffic, and whether ftcluster_address names the fastest network"
)


def _like(host: Row, hosts: Sequence[Row]) -> list[Row]:
    """The hosts with the same CPU that were measured, itself among them."""
    if not host.get("speed"):
        return []
    return [
        other
        for other in hosts
        if other.get("speed") and other["speed"]["cpu"] == host["speed"]["cpu"]
    ]


def _precision(hosts: Sequence[Row]) -> str:
    """The one that training would take on all of these."""
    measured = [host["speed"] for host in hosts if host.get("speed")]
    return "bf16" if all(speed["bf16_gflops"] for speed in measured) else "fp32"


def _per_core(host: Row, precision: str) -> float:
    return float(host["speed"][f"{precision}_gflops"]) / int(host["speed"]["threads"])


def _nominal(mbits: Sequence[int | None]) -> float:
    """What one stream between two interfaces could carry in MB/s, 0 where it is not known."""
    known = [min(speed, STREAM_MBITS) for speed in mbits if speed]
    return min(known) / 8 if len(known) == len(mbits) else 0.0


def _range(links: Sequence[Row]) -> str:
    speeds = sorted(link["mb_per_second"] for link in links)
    times = sorted(link["latency_us"] for link in links)
    if len(links) == 1:
        return f"{_mb(speeds[0])}, {times[0]:.0f} us"
    return f"{speeds[0]:.0f} to {_mb(speeds[-1])}, {times[0]:.0f} to {times[-1]:.0f} us"


def _mb(speed: float) -> str:
    return f"{speed:.0f} MB/s" if speed >= 10 else f"{speed:.1f} MB/s"
