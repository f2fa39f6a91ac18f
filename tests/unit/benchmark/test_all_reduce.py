"""The command `bench allreduce` without the ranks' measurements."""

import json
import re
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcluster.ansible.playbook import PlaybookOutcome
from ftcluster.benchmark.all_reduce import Bench, MeasurementEvents, prepare, read_size
from ftcluster.benchmark.all_reduce_report import document, fp32_times, lines
from ftcluster.cli.main import main
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.saved import Cluster, recall, remember
from ftcluster.errors import UsageError
from ftcluster.launch import follow, run_hosts
from ftcluster.planning.plan import plan
from tests.unit.clusters import STACKS, VM, cluster, host
from tests.unit.shell import Said, Shell

MIB = 2**20


def prepared(facts: ClusterFacts, *backends: str, size: int = MIB, ranks: int = 2) -> Bench:
    return prepare(Cluster((), facts), [size], backends, None, ranks, 60)


def request(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bench.run.script.program[-1])
    return found


def measured(size: int, kind: str, **milliseconds: float) -> dict[str, Any]:
    return {
        "event": "all_reduce", "bytes": size, "type": kind, "turns": 9,
        "milliseconds": milliseconds, "left_out": "", "load": 0.1,
        "spread": dict.fromkeys(milliseconds, 0.1),
    }  # fmt: skip


TIMES = [
    measured(4096, "fp32", gloo=0.1, impi=0.2, mpi=0.05),
    measured(25 * MIB, "fp32", gloo=40.0, impi=16.0, mpi=16.0),
    measured(25 * MIB, "bf16", gloo=90.0, impi=16.0, mpi=12.8),
    {
        **measured(512 * MIB, "fp32"),
        "turns": 0,
        "left_out": "it would take 9 s, but only 3 s are left",
    },
]
LINK = {"event": "link", "ranks": [0, 2], "latency_us": 50.0, "mb_per_second": 118.0}


@pytest.mark.parametrize("text", ["", "4X", "K", "-4", "1.5M", "6", "0", "2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_size(text)


def test_all_backends_of_the_stack_are_measured_beside_mpi() -> None:
    assert request(prepared(cluster(VM)))["backends"] == ["gloo", "impi", "mpi"]
    assert request(prepared(cluster(VM), "gloo"))["backends"] == ["gloo", "mpi"]
    bound = cluster(host("a", cores=16, stack="intel-2.7"))
    assert request(prepared(bound))["backends"] == ["ccl", "gloo", "impi", "mpi"]
    oldest = cluster(host("a", cores=16, stack="intel-2.3"))
    assert request(prepared(oldest))["backends"] == ["ccl", "gloo"]


def test_what_cannot_be_measured(said: Said) -> None:
    with pytest.raises(UsageError) as one_rank:
        prepared(cluster(VM), ranks=1)
    said(one_rank.value)
    with pytest.raises(UsageError) as no_ccl:
        prepared(cluster(VM), "ccl", "gloo")
    said(no_ccl.value)


def test_a_size_without_room_in_memory_is_left_out(said: Said) -> None:
    small = host("small", memory_bytes=4 * 10**9)
    facts = cluster(host("large"), small)
    bench = prepared(facts, size=1024 * MIB)
    assert request(bench)["sizes"] == []
    assert list(bench.left_out) == [1024 * MIB]
    said(bench.left_out[1024 * MIB])
    assert request(prepared(facts, size=256 * MIB))["sizes"] == [256 * MIB]


@cache
def one_host() -> Bench:
    return prepared(cluster(host("node0")))


def result(hosts: int, *events: dict[str, Any], **facts: Any) -> dict[str, Any]:
    bench = prepared(cluster(*(host(f"node{n}", **facts) for n in range(hosts))))
    found = MeasurementEvents()
    for event in events:
        found.add(event)
    return document(bench, found, 12.0)


def test_the_document_of_one_host(said: Said) -> None:
    found = result(1, *TIMES)
    small, large, bf16 = found["sizes"]
    assert large["times"]["impi"] == {
        "ms": 16.0, "spread": 0.1, "bus_gb_per_second": 1.6384, "of_gloo": 0.4, "of_mpi": 1.0,
        "of_network": None,
    }  # fmt: skip
    assert small["times"]["gloo"]["of_mpi"] == 2.0
    assert (bf16["type"], bf16["turns"]) == ("bf16", 9)
    assert found["left_out"][0]["bytes"] == 512 * MIB
    # geometric means of 0.4 and 16/90, and of 1 and 1.25
    assert found["large"] == {
        "fastest": "impi", "rows": 2, "fastest_in": 2, "of_gloo": 0.267, "of_mpi": 1.118,
    }  # fmt: skip
    said("\n".join(lines(found)))
    mixed = result(
        1, measured(25 * MIB, "fp32", gloo=10.0, impi=11.0),
        measured(100 * MIB, "fp32", gloo=40.0, impi=20.0) | {"load": 0.9},
    )  # fmt: skip
    said("\n".join([*lines(mixed)][-2:]))
    assert fp32_times(mixed, "ms") == {}
    assert fp32_times(found, "ms")[25 * MIB] == {"gloo": 40.0, "impi": 16.0}


def test_the_document_of_several_hosts(said: Said) -> None:
    found = result(2, LINK, *TIMES)
    assert found["links"] == [{"hosts": ["node0", "node1"], "latency_us": 50.0,
                               "mb_per_second": 118.0}]  # fmt: skip
    assert (found["interface_mbits"], found["provider"]) == (25000, "tcp")
    impi = found["sizes"][1]["times"]["impi"]
    # four ranks: 1.5 times the bytes; two hosts: each sends the bytes once, over 3125 MB/s
    assert impi["bus_gb_per_second"] == pytest.approx(1.5 * 25 * MIB / 16e6, abs=1e-4)
    assert impi["of_network"] == pytest.approx(25 * MIB / 16e-3 / 3125e6, abs=1e-3)
    said("\n".join(lines(found)))
    unknown = result(2, LINK, *TIMES, nics=())
    speed = unknown["sizes"][1]["times"]["impi"]["of_network"]
    assert speed == pytest.approx(25 * MIB / 16e-3 / 118e6, abs=1e-3)


@given(
    st.lists(
        st.fixed_dictionaries({name: st.floats(0.01, 1000) for name in ("gloo", "impi", "mpi")}),
        min_size=1, max_size=6,
    ),
    st.sampled_from([0.1, 0.9]),
)  # fmt: skip
def test_the_summary_says_what_the_rows_say(rows: list[dict[str, float]], load: float) -> None:
    small = measured(4096, "fp32", gloo=0.001, impi=9.0, mpi=0.001)
    large = [measured(25 * MIB * 2**n, "fp32", **row) for n, row in enumerate(rows)]
    times = [event | {"load": load} for event in (small, *large)]
    found = document(one_host(), MeasurementEvents(times), 12.0)
    text = "\n".join(lines(found))
    shown = [{k: v["ms"] for k, v in row["times"].items()} for row in found["sizes"][1:]]
    said = re.search(r"at least 25 MiB, (\w+) is the fastest in (\d) of (\d) rows?", text)
    assert said
    fastest, other = said[1], {"gloo": "impi", "impi": "gloo"}[said[1]]
    faster = [row for row in shown if row[fastest] <= row[other]]
    assert [int(said[2]), int(said[3])] == [len(faster), len(rows)]
    ratios = re.findall(r"([\d.]+) of (gloo|MPI)'s time", text)
    assert [name for _, name in ratios] == (["MPI"] if fastest == "gloo" else ["gloo", "MPI"])
    for ratio, name in ratios:
        each = [row[fastest] / row[name.lower()] for row in shown]
        mean = prod(each) ** (1 / len(each))
        assert float(ratio) == pytest.approx(mean, rel=0.01, abs=0.006)
        assert name == "MPI" or (mean <= 1 and faster)
    assert ("not saved for later plans" in text) == (load > 0.5) == (fp32_times(found, "ms") == {})


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs end at once with these times."""
    events = [*TIMES, {"event": "end", "state": "done", "exit_code": 0, "seconds": 9.0}]
    text = "".join(json.dumps({"time": 1.0, **event}) + "\n" for event in events)

    def run_playbook(*_: Any, **options: Any) -> PlaybookOutcome:
        (path,) = follow.record_dir("r").parent.glob("*/events.jsonl")
        path.write_text(text)
        options["on_tick"]()
        return PlaybookOutcome("done", "")

    monkeypatch.setattr(run_hosts, "run_playbook", run_playbook)


@pytest.mark.usefixtures("ended", "head")
def test_the_plan_chooses_by_the_result(shell: Shell, said: Said) -> None:
    remember(Cluster((Path("/inventory.ini"),), cluster(VM)))
    assert shell("bench allreduce --ranks-per-host 2 --json").document["state"] == "done"
    facts = recall().facts
    assert facts.all_reduce
    assert (facts.all_reduce.ms, facts.all_reduce.bytes) == ({"gloo": 40.0, "impi": 16.0}, 25 * MIB)
    assert facts.all_reduce.sizes == {"4096": {"gloo": 0.1, "impi": 0.2}}
    decided = plan(facts, None, STACKS, 2)
    said(next(one.why for one in decided.decisions if one.what == "backend"))
    slower = replace(facts.all_reduce, ms={"gloo": 1.0, "impi": 16.0})
    assert plan(replace(facts, all_reduce=slower), None, STACKS, 2).backend == "gloo"
    # a measurement within a host says nothing about several hosts
    several = replace(facts, hosts=(host("a"), host("b")), all_reduce=slower)
    assert plan(several, None, STACKS, 2).backend == "impi"


@pytest.mark.usefixtures("ended")
def test_a_part_of_the_hosts_says_nothing_of_all(shell: Shell) -> None:
    remember(Cluster((Path("/inventory.ini"),), cluster(host("a"), host("b"))))
    options = ("--ranks-per-host", "2", "--nodes", "1", "--backends", "gloo,impi")
    assert "25 MiB, impi is the fastest" in shell(["bench", "allreduce", *options]).out
    assert recall().facts.all_reduce is None


def test_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run_hosts, "run_playbook", lambda *_, **__: PlaybookOutcome("failed", "no Python")
    )
    remember(Cluster((Path("/inventory.ini"),), cluster(VM)))
    assert main(["bench", "allreduce", "--ranks-per-host", "2"]) == 1
