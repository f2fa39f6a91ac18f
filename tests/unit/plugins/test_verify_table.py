from typing import Any

from ansible_collections.ftcluster.cluster.plugins.filter.verify_table import (
    cpu,
    speed,
    verify_table,
)

FACTS = {
    "cpu_generation": "Sapphire Rapids", "cpu_model": "Intel(R) Xeon(R) Platinum 8488C",
    "cores": 32, "memory_bytes": 256 * 10**9, "network_interface": "eth0",
    "nics": [
        {"name": "lo", "speed_mbits": None}, {"name": "eth0", "speed_mbits": 25000},
    ],
}  # fmt: skip


def row(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name, "hostname": f"{name}.lan", "address": "10.0.0.1", "python": "3.11.7",
        "kernel": "brg_matmul:avx512_core_amx", "versions": {"torch": "2.8.0+cpu"}, **changes,
    }  # fmt: skip


def report(*hosts: dict[str, Any]) -> dict[str, Any]:
    return {"hosts": hosts, "packages": 60, "all_reduce_ms": 3.14 if len(hosts) > 1 else None}


def test_columns_stand_below_one_another() -> None:
    hosts = row("node1"), row("a-longer-name", address="10.0.0.123")
    head, first, second, last = verify_table(
        report(*hosts), {"node1": FACTS, "a-longer-name": FACTS}
    )
    for word in ("10.0.0.1", "Sapphire", "25 Gbit/s"):
        assert first.index(word) == second.index(word)
    assert head.index("address") == first.index("10.0.0.1")
    assert first.endswith("brg_matmul:avx512_core_amx")
    assert "32     256 GB  eth0 25 Gbit/s  3.11.7  2.8.0+cpu" in first
    assert last == (
        "mpirun reached 2 hosts with the same 60 packages; "
        "an all-reduce over all ranks is correct (3.1 ms for 4 MiB)"
    )


def test_one_host_has_nobody_to_compare_with() -> None:
    *_, last = verify_table(report(row("localhost")), {"localhost": FACTS})
    assert last == "mpirun reached 1 host, whose packages are consistent"
    # missing facts give empty cells
    lines = verify_table(report(row("node1", kernel="")), {})
    assert "node1" in lines[1]
    assert lines[1].endswith("2.8.0+cpu")
    (head, *_) = verify_table({**report(row("node1", speed=None)), "links": []}, {})
    assert head.endswith("computes with")


def test_the_speed_of_the_interface_where_it_is_known() -> None:
    assert speed(FACTS) == "eth0 25 Gbit/s"
    assert speed({**FACTS, "nics": [{"name": "eth0", "speed_mbits": 2500}]}) == "eth0 2.5 Gbit/s"
    assert speed({**FACTS, "nics": [{"name": "eth0", "speed_mbits": None}]}) == "eth0"
    assert speed({**FACTS, "network_interface": "eth7"}) == "eth7"
    assert speed({}) == ""
    # an unknown CPU is shown by its own name
    assert cpu(FACTS) == "Sapphire Rapids"
    assert cpu({**FACTS, "cpu_generation": "other"}) == "Intel(R) Xeon(R) Platinum 8488C"
    assert cpu({}) == ""


def test_what_was_measured_is_beside_it() -> None:
    speed = {"bf16_gflops": None, "fp32_gflops": 1600.4, "relative": 0.512}
    hosts = row("node1", speed=speed), row("node2", speed=None)
    link = {"hosts": ["node1", "node2"], "latency_us": 41.6, "mb_per_second": 1012.0}
    head, first, second, _, last = verify_table({**report(*hosts), "links": [link]}, {})
    assert head.endswith("  bf16 GFLOP/s  fp32 GFLOP/s  of median")
    assert first[head.index("fp32") :].split() == ["1600", "0.51"]
    assert second.endswith("brg_matmul:avx512_core_amx")
    assert last == "1 pair of hosts measured: 42 to 42 us, 1012 to 1012 MB/s"
