"""`ftcluster check` on a healthy cluster, and on a cluster with faults."""

import json
import re
from typing import Any

import pytest

from tests.cluster.cluster import TWO, Cluster, no_rank_is_left
from tests.cluster.control import ADDRESS, HEAD, NAMES, OTHER, THIRD


def check(cluster: Cluster, code: int) -> dict[str, Any]:
    """Return the document of `check --json`."""
    done = cluster.control.run("check", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["format"], result["state"]) == (1, "unfit" if code else "fit")
    return result


def findings(result: dict[str, Any], kind: str) -> list[str]:
    """Return the hosts that have a problem or a warning of this kind."""
    found = [*result["problems"], *result["warnings"]]
    return [finding["host"] for finding in found if finding["kind"] == kind]


@pytest.mark.alone
def test_check_measures_a_healthy_cluster_and_changes_nothing(cluster: Cluster) -> None:
    control = cluster.control
    places = "/opt/ftcluster /var/lib/ftcluster /home /tmp /etc"
    files = f"find {places} ! -type d ! -name 'sort??????' -printf '%p %T@ %s\\n' | sort"

    def state() -> list[str]:
        return [control.shell(name, files) for name in NAMES]

    before = state()
    result = check(cluster, 0)
    assert state() == before
    no_rank_is_left(cluster)
    assert result["problems"] == []
    assert findings(result, "busy") == findings(result, "unmeasured") == []
    assert [host["name"] for host in result["hosts"]] == list(NAMES)
    for host in result["hosts"]:
        assert host["address"] == ADDRESS[host["name"]]
        assert (host["stack"], host["interface"]) == ("native", "eth0")
        assert host["computes_with"]
        assert host["speed"]["fp32_gflops"] > 1
        assert host["speed"]["threads"] == host["cores"] == 1
        assert host["speed"]["memory_gb_per_second"] > 0.1
        assert host["speed"]["disk_mb_per_second"] > 1
    pairs = [tuple(pair["hosts"]) for pair in result["pairs"]]
    assert pairs == [(HEAD, OTHER), (HEAD, THIRD), (OTHER, THIRD)]
    assert all(pair["latency_us"] > 1 for pair in result["pairs"])
    assert result["mb_per_second"]["min"] > 20
    assert result["all_reduce_ms"] > 0
    record = json.loads(cluster.control.shell(HEAD, "cat /opt/ftcluster/cluster.json"))
    measured = record["all_reduce"].get("setup")  # there is no measurement if hosts were busy
    print(measured)
    assert measured is None or measured["sizes"]["26214400"].keys() == {"gloo", "impi"}


@pytest.mark.long
@pytest.mark.alone
def test_check_names_a_host_that_computes_slowly(cluster: Cluster) -> None:
    # node1 has one core alone, and the other two hosts share the other core
    cluster.control.bed.cpu(OTHER, 20)
    try:
        done = cluster.control.run("check")
    finally:
        cluster.control.bed.cpu(OTHER, None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^  {OTHER}: \d+ GFLOP/s in \w+, \d+ % less per core", done.stdout, re.M)
    assert "its threads got" in done.stdout
    assert re.search(r"^fit: 3 hosts, \d warnings?, [\d:]+( s)?$", done.stdout, re.M), done.stdout


@pytest.mark.long
@pytest.mark.alone
def test_check_names_a_host_with_a_slow_cable(cluster: Cluster) -> None:
    cluster.control.bed.shape(THIRD, "100mbit")
    try:
        result = check(cluster, 0)
    finally:
        cluster.control.bed.shape(THIRD, "off")
    assert THIRD in findings(result, "link"), result["warnings"]
    speeds = {tuple(pair["hosts"]): pair["mb_per_second"] for pair in result["pairs"]}
    assert 5 < speeds[HEAD, THIRD] < 13
    assert 5 < speeds[OTHER, THIRD] < 13
    assert speeds[HEAD, OTHER] > 20


def test_check_names_hosts_that_are_apart_and_measures_the_others(cluster: Cluster) -> None:
    bed = cluster.control.bed
    bed.cut(OTHER, THIRD)
    try:
        apart = check(cluster, 1)
    finally:
        bed.heal(OTHER, THIRD)
    assert [problem["what"] for problem in apart["problems"]] == [
        f"no TCP connection between it and {THIRD}"
    ]
    assert [pair["hosts"] for pair in apart["pairs"]] == [[HEAD, OTHER]]
    no_rank_is_left(cluster)


@pytest.mark.long
def test_check_names_a_host_that_is_off_and_measures_the_others(cluster: Cluster) -> None:
    bed = cluster.control.bed
    bed.kill(THIRD)
    try:
        off = check(cluster, 1)
    finally:
        bed.boot(THIRD)
    assert findings(off, "unreachable") == [THIRD]
    assert len(off["problems"]) == 1
    assert [host["answers"] for host in off["hosts"]] == [True, True, False]
    assert [pair["hosts"] for pair in off["pairs"]] == [[HEAD, OTHER]]
    assert off["seconds"] < 120  # ssh without these settings would wait for minutes
    no_rank_is_left(cluster)


def test_a_folder_that_is_mounted_read_only_is_named_before_ranks_start(cluster: Cluster) -> None:
    control, runs = cluster.control, "/opt/ftcluster/runs"
    mount = f"mount --bind {runs} {runs} && mount -o remount,ro,bind {runs}"
    with control.changed({OTHER: (mount, f"umount {runs}")}):
        result = check(cluster, 1)
        [problem] = [one for one in result["problems"] if one["kind"] == "preflight"]
        assert (problem["host"], problem["what"]) == (
            OTHER, f"{runs} is on a file system that is mounted read-only",
        )  # fmt: skip
        train = control.run("train", "quickstart", *TWO, "--detach")
        assert train.returncode == 1
        [line] = [line for line in train.stderr.splitlines() if "Read-only file system" in line]
        assert f"{OTHER}: Write the job: {runs}/" in line
        assert "mount it writable" in line
    no_rank_is_left(cluster)
