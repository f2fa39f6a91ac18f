from itertools import combinations
from typing import Any

import pytest

from ftcluster_common.protocol.finding import Finding
from ftcluster_train.health.outliers import (
    MAX_LINKS,
    below_peak,
    relative_speeds,
    slow_hosts,
    slow_links,
    slow_memory_and_disks,
)

XEON, OTHER_XEON = "Intel(R) Xeon(R) Platinum 8488C", "Intel(R) Xeon(R) Platinum 8375C"
SPEED = {
    "bf16_gflops": 4000.0, "fp32_gflops": 1600.0, "cpu": XEON, "threads": 32, "load_average": 0.3,
    "cpu_share": 0.99, "stolen_share": 0.0, "throttled": 0, "mhz": 2600, "governor": "performance",
    "numa_nodes": 2, "memory_gb_per_second": 400.0, "disk_mb_per_second": 900,
}  # fmt: skip


def host(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "speed": {**SPEED, **changes}}


def four(**changes: Any) -> list[dict[str, Any]]:
    """Return three equal hosts, and node3 with changes."""
    return [host("node0"), host("node1"), host("node2"), host("node3", **changes)]


def hint(**changes: Any) -> str:
    (finding,) = slow_hosts(four(bf16_gflops=2000.0, **changes))
    return finding.hint


def test_a_lone_host_far_below_its_own_peak_is_named() -> None:
    def findings(**changes: Any) -> list[Finding]:
        return below_peak([host("alone", **changes)])

    (finding,) = findings(fp32_of_peak=0.41, bf16_of_peak=0.4)
    assert (finding.host, finding.kind) == ("alone", "kernel")
    assert finding.what.startswith("matrix multiplication in fp32 reaches 41% of the CPU's peak")
    # AMX matmuls reach a fifth to a half of the peak; a thread without CPU time says nothing about
    # kernels
    assert findings(fp32_of_peak=0.9, bf16_of_peak=0.2) == []
    assert findings(fp32_of_peak=0.41, cpu_share=0.5) == []
    assert findings(fp32_of_peak=None) == []
    assert findings() == below_peak([{"name": "silent", "speed": None}]) == []


# --- hosts


def test_hosts_that_are_alike_are_not_named() -> None:
    assert slow_hosts(four()) == []
    assert slow_hosts(four(bf16_gflops=3300.0)) == []  # less than a fifth slower
    assert set(relative_speeds(four()).values()) == {1.0}
    # compared per core
    half = {"threads": 16, "bf16_gflops": 2000.0, "fp32_gflops": 800.0}
    assert slow_hosts(four(**half)) == []
    assert relative_speeds(four(**half))["node3"] == 1.0
    # only hosts with the same CPU are compared
    hosts = [host("node0"), host("node1"), host("old", cpu=OTHER_XEON, bf16_gflops=None)]
    assert slow_hosts(hosts) == []
    assert relative_speeds(hosts) == {"node0": 1.0, "node1": 1.0, "old": None}


def test_a_host_slower_by_more_than_a_fifth_is_named_with_its_numbers() -> None:
    hosts = four(bf16_gflops=1000.0)
    (finding,) = slow_hosts(hosts)
    assert (finding.host, finding.kind) == ("node3", "straggler")
    assert finding.what.startswith("1000 GFLOP/s in bf16, 75 % less per core than the median of")
    assert relative_speeds(hosts)["node3"] == 0.25


def test_the_precision_that_training_takes_counts() -> None:
    slow = {"fp32_gflops": 1000.0}
    assert slow_hosts(four(**slow)) == []
    # one host has no bf16, so all hosts train in fp32
    hosts = [*four(**slow), host("old", cpu=OTHER_XEON, bf16_gflops=None)]
    (finding,) = slow_hosts(hosts)
    assert finding.what.startswith("1000 GFLOP/s in fp32, 38 % less")


def test_slow_memory_is_named_beside_the_same_cpu_and_a_slow_disk_beside_any() -> None:
    assert slow_memory_and_disks(four(memory_gb_per_second=330.0, disk_mb_per_second=500)) == []
    found = slow_memory_and_disks(four(memory_gb_per_second=200.0, disk_mb_per_second=90))
    assert [(one.host, one.what) for one in found] == [
        ("node3", "200 GB/s of memory, but 400 on the other hosts"),
        ("node3", "90 MB/s written to disk, but 900 on the other hosts"),
    ]
    (other,) = slow_memory_and_disks(
        four(cpu=OTHER_XEON, memory_gb_per_second=200.0, disk_mb_per_second=90)
    )
    assert other.what.startswith("90 MB/s")
    assert slow_memory_and_disks(four(disk_mb_per_second=None)) == []
    assert slow_memory_and_disks([host("alone")]) == []


def test_hosts_that_were_not_measured_are_left_out() -> None:
    hosts = [host("node0"), {"name": "node1", "speed": None}, host("node2", bf16_gflops=1000.0)]
    assert [finding.host for finding in slow_hosts(hosts)] == ["node2"]
    assert relative_speeds(hosts)["node1"] is None
    assert slow_hosts([host("alone", bf16_gflops=1.0)]) == []
    assert relative_speeds([host("alone")]) == {"alone": None}
    assert slow_hosts([]) == []


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"cpu_share": 0.5}, ["got 50%", "99%", "other programs"]),
        ({"stolen_share": 0.3}, ["hypervisor", "30%"]),
        ({"throttled": 3}, ["throttled"]),
        ({"mhz": 1200}, ["1200 MHz", "2600"]),
        ({"governor": "powersave"}, ["powersave", "performance"]),
        ({"numa_nodes": 8}, ["8 NUMA nodes", "2", "SNC"]),
        ({"load_average": 40.0}, ["load average was 40", "32 threads"]),
        # without a measured reason, all possible reasons are listed
        ({}, ["nothing measured", "load average 0.3", "frequency", "cooling", "SNC", "memory"]),
        ({"mhz": None, "governor": ""}, ["nothing measured"]),
    ],
)
def test_the_hint_has_the_measured_reason(measured: dict[str, Any], words: list[str]) -> None:
    assert all(word in hint(**measured) for word in words)
    assert ("nothing measured" in hint(**measured)) == ("nothing measured" in words)


def test_stolen_time_explains_a_low_cpu_share() -> None:
    assert "hypervisor" in hint(cpu_share=0.6, stolen_share=0.4)
    assert "other programs" not in hint(cpu_share=0.6, stolen_share=0.4)


# --- links

FAST = {"latency_us": 40.0, "mb_per_second": 1000.0}
MBITS: dict[str, int | None] = {}


def mesh(count: int, **slow: dict[str, float]) -> list[dict[str, Any]]:
    """Return all pairs of `count` hosts; keyword arguments such as a_b change pairs."""
    names = [chr(ord("a") + number) for number in range(count)]
    return [
        {"hosts": [one, other], **FAST, **slow.get(f"{one}_{other}", {})}
        for one, other in combinations(names, 2)
    ]


def test_links_that_are_alike_are_not_named() -> None:
    assert slow_links(mesh(4), MBITS) == []
    assert slow_links([], MBITS) == []
    noise = {"latency_us": 70.0, "mb_per_second": 600.0}
    assert slow_links(mesh(4, a_b=noise, c_d=noise), MBITS) == []
    # half of the nominal speed is not slow
    links = mesh(3, a_b={"mb_per_second": 400.0})
    assert len(slow_links(links, MBITS)) == 1
    assert len(slow_links(links, dict.fromkeys("abc", 10_000))) == 1
    assert slow_links(links, {**dict.fromkeys("bc", 10_000), "a": 5_000}) == []


@pytest.mark.parametrize("count", [3, 4, 8])
def test_one_slow_pair_is_named(count: int) -> None:
    (finding,) = slow_links(mesh(count, a_c={"mb_per_second": 11.8}), MBITS)
    assert (finding.host, finding.kind) == ("a", "link")
    for words in ("link to c", "12 MB/s, 40 us", "1000 MB/s and 40 us"):
        assert words in finding.what


def test_a_pair_that_answers_late_is_named() -> None:
    (finding,) = slow_links(mesh(4, b_d={"latency_us": 5040.0}), MBITS)
    assert finding.what.startswith("its link to d is slow: 1000 MB/s, 5040 us")
    # a difference of some microseconds does not count
    assert slow_links(mesh(4, b_d={"latency_us": 539.0}), MBITS) == []
    assert len(slow_links(mesh(4, b_d={"latency_us": 541.0}), MBITS)) == 1


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_host_whose_links_all_are_slow_is_named_once(count: int) -> None:
    slow = {"mb_per_second": 11.0}
    links = [
        {**link, **slow} if "b" in link["hosts"] else link
        for link in mesh(count, a_b={"mb_per_second": 9.0})
    ]
    (finding,) = slow_links(links, MBITS)
    assert finding.host == "b"
    assert finding.what.startswith("all of its links are slow: 11 to 11 MB/s, 40 to 40 us; usual")


def test_the_worst_come_first_and_the_rest_are_counted() -> None:
    slow = {
        f"{one}_{other}": {"mb_per_second": 100.0 - number}
        for number, (one, other) in enumerate(combinations("abcd", 2))
    }
    # links to e, f and g are good, so no host is slow as a whole
    found = slow_links(mesh(7, **slow), MBITS)
    assert found[0].what.startswith("its link to d is slow: 95 MB/s")
    assert found[0].host == "c"
    assert len(found) == MAX_LINKS + 1
    assert found[-1] == Finding("", "1 more links of 21 are slow", found[0].hint, "link")


def test_one_pair_is_compared_with_its_nominal_speed() -> None:
    links = mesh(2, a_b={"mb_per_second": 11.8})
    assert slow_links(links, MBITS) == []
    (finding,) = slow_links(links, {"a": 1000, "b": 10000})
    assert finding.what == (
        "its link to b is slow: 12 MB/s, 40 us; the interfaces have 1 Gbit/s, of which a "
        "stream can take 125 MB/s"
    )
    for words in ("duplex and autonegotiation", "MTU", "ftcluster_address"):
        assert words in finding.hint
    for speed, slow in ((62.0, True), (63.0, False)):
        found = slow_links(mesh(2, a_b={"mb_per_second": speed}), {"a": 1000, "b": 1000})
        assert bool(found) == slow
    assert slow_links(links, {"a": 1000, "b": None}) == []


def test_if_all_links_are_slow_there_is_one_finding() -> None:
    slow = {f"{one}_{other}": {"mb_per_second": 20.0} for one, other in combinations("abc", 2)}
    (finding,) = slow_links(mesh(3, **slow), dict.fromkeys("abc", 10_000))
    assert finding.host == ""
    assert finding.what == (
        "all 3 links are slow, worst a to b: 20 to 20 MB/s, 40 to 40 us; the interfaces have "
        "10 Gbit/s, of which a stream can take 1250 MB/s"
    )


def test_one_stream_does_not_fill_a_very_fast_interface() -> None:
    assert slow_links(mesh(3), dict.fromkeys("abc", 400_000)) == []
    links = mesh(3, a_b={"mb_per_second": 600.0})
    [finding] = slow_links(links, dict.fromkeys("abc", 400_000))
    assert "have 400 Gbit/s, of which a stream can take 1250 MB/s; usual here" in finding.what
