"""The nodes of a Slurm job as hosts; a shell script replaces srun and runs the step here."""

import os
import socket
from pathlib import Path

import pytest

from ftcluster.cluster import slurm
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import FtclusterError, UsageError
from tests.unit.clusters import VM, cluster, host

BATCH = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "xeon[1-3]",
    "SLURM_JOB_CPUS_PER_NODE": "64(x2),32",
    "SLURMD_NODENAME": "xeon1",
    "SLURM_PROCID": "0",
}
NODES = ("xeon1", "xeon2", "xeon3")
# the option has the node's name; the node `lost` does not respond, and `apart` sees no shared
# folder
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && node=${1#*=}; shift; done
case $node in
lost) echo "srun: error: Unable to create step: node not available" >&2; exit 1 ;;
apart) exec env PATH=$PATH "$1" "$2" "$3" "$4" /none "${@:6}" ;;
esac
exec "$@"
"""


def job(*nodes: str) -> slurm.Allocation:
    return slurm.Allocation("12", nodes, (1,) * len(nodes), nodes[0], 1, 0)


def test_the_nodes_of_a_job_with_their_cpus_this_one_first() -> None:
    found = slurm.allocated(BATCH, NODES)
    assert found == slurm.Allocation("12", NODES, (64, 64, 32), "xeon1", 1, 0)
    third = slurm.allocated({**BATCH, "SLURMD_NODENAME": "xeon3"}, NODES)
    assert (third.nodes, third.cpus) == (("xeon3", "xeon1", "xeon2"), (32, 64, 64))
    assert slurm.allocated({**BATCH, "SLURM_RESTART_COUNT": "2"}, NODES).restarts == 2
    assert slurm.allocation({"SLURM_JOB_ID": "12"}) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "64(x3),32"}, "SLURM_JOB_CPUS_PER_NODE=64(x3),32, SLURM_"),
        ({"SLURM_JOB_CPUS_PER_NODE": "64"}, "SLURM_JOB_CPUS_PER_NODE=64, SLURM_JOB_NODELIST=xeon["),
        ({"SLURM_JOB_CPUS_PER_NODE": "all"}, "job: SLURM_JOB_CPUS_PER_NODE=all"),
        ({"SLURM_HET_SIZE": ""}, "SLURM_HET_SIZE="),
        ({"SLURM_RESTART_COUNT": "-1"}, "SLURM_RESTART_COUNT=-1"),
        ({"SLURM_STEP_NUM_TASKS": "two"}, "SLURM_STEP_NUM_TASKS=two"),
        # so many numbers that they would fill the memory, and numbers that Python does not parse
        ({"SLURM_JOB_CPUS_PER_NODE": "1(x99999999999)"}, "SLURM_JOB_CPUS_PER_NODE=1(x9999"),
        ({"SLURM_JOB_CPUS_PER_NODE": "1(x65533),1(x65533)"}, "SLURM_JOB_CPUS_PER_NODE=1(x65533)"),
        ({"SLURM_JOB_CPUS_PER_NODE": "-4(x2),-2"}, "SLURM_JOB_CPUS_PER_NODE=-4"),
        ({"SLURM_JOB_CPUS_PER_NODE": "4(x2,2)"}, "SLURM_JOB_CPUS_PER_NODE=4(x2,2)"),
        ({"SLURM_RESTART_COUNT": "9" * 5000}, "SLURM_RESTART_COUNT=999"),
        ({"SLURM_JOB_ID": "12 --uid=0"}, "SLURM_JOB_ID=12 --uid=0"),
        ({"SLURM_JOB_ID": ""}, "SLURM_JOB_ID="),
    ],
)
def test_variables_that_are_not_those_of_one_job(changed: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        slurm.allocated({**BATCH, **changed}, NODES)
    assert named in caught.value.message
    assert "env -u SLURM_JOB_ID" in caught.value.hint


@pytest.mark.parametrize(
    "name",
    ["--uid=0", "-w", "a:64", "a,b", "a$(id)", "a;b", "a/b", "a\\nb:9", "é", "a" * 300, "xeon2"],
)
def test_no_name_of_a_node_is_an_option_a_line_or_a_command(name: str) -> None:
    """Names become arguments of srun, lines of the hostfile and commands in messages."""
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST="):
        slurm.allocated(BATCH, ("xeon1", name, "xeon2"))


def test_a_job_without_nodes_or_without_word_of_its_cpus() -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST="):
        slurm.allocated({"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": ""}, [])
    unknown = slurm.allocated({k: v for k, v in BATCH.items() if "CPUS" not in k}, NODES)
    assert (unknown.cpus, unknown.memory) == ((0, 0, 0), ())


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "128000"}, (128000 << 20,) * 3),
        ({"SLURM_MEM_PER_NODE": "128G"}, (128 << 30,) * 3),
        ({"SLURM_MEM_PER_CPU": "2000"}, (64 * 2000 << 20, 64 * 2000 << 20, 32 * 2000 << 20)),
        ({"SLURM_MEM_PER_NODE": "0"}, ()),  # all memory of the node
        ({"SLURM_MEM_PER_NODE": "much"}, ()),
    ],
)
def test_the_memory_of_a_job(memory: dict[str, str], expected: tuple[int, ...]) -> None:
    assert slurm.allocated({**BATCH, **memory}, NODES).memory == expected


def test_a_heterogeneous_job_is_refused_with_its_nodes() -> None:
    parts = {"SLURM_JOB_NODELIST_HET_GROUP_0": "xeon[1-3]",
             "SLURM_JOB_NODELIST_HET_GROUP_1": "gpu-[1-2]"}  # fmt: skip
    assert slurm.allocated({**BATCH, "SLURM_HET_SIZE": "1"}, NODES).nodes == NODES
    with pytest.raises(UsageError, match=r"job 12 is heterogeneous \(xeon\[1-3\] : gpu-\[1-2\]\)"):
        slurm.allocated({**BATCH, **parts, "SLURM_HET_SIZE": "2"}, NODES)


def test_after_salloc_the_command_runs_on_the_first_node() -> None:
    found = slurm.allocated({k: v for k, v in BATCH.items() if k != "SLURMD_NODENAME"}, NODES)
    assert found.here == ""
    argv = slurm.on_first_node(found, True, ["ftcluster", "train"])
    assert argv[:5] == ["srun", "--jobid=12", "--nodes=1", "--ntasks=1", "--nodelist=xeon1"]
    assert "--overlap" in argv
    assert argv[-3:] == ["--pty", "ftcluster", "train"]
    assert "--pty" not in slurm.on_first_node(found, False, ["ftcluster"])


@pytest.mark.parametrize(
    ("cpus", "cores", "quota"),
    [(8, 4, None), (0, 4, None), (2, 2, 2.0), (1, 1, 1.0)],
    ids=["all", "unknown", "half", "one"],
)
def test_a_job_that_is_not_confined_gets_its_share_of_the_time(
    cpus: int, cores: int, quota: float | None
) -> None:
    facts = {**vars(host("x", cores=4)), "current": "native-1b2c", "cpu_quota": None}
    facts["numa"] = [vars(node) for node in facts["numa"]]
    found = slurm.host_facts("xeon1", facts, cpus)
    assert (found.name, found.stack, found.connection) == ("xeon1", "native", "local")
    assert (found.cores, found.cpu_quota) == (cores, quota)
    half = facts["memory_bytes"] // 2
    given = [slurm.host_facts("xeon1", facts, cpus, memory) for memory in (0, half, 8 * half)]
    assert [one.memory_bytes for one in given] == [2 * half, half, 2 * half]


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Yield a prefix with a stack, and an srun."""
    programs, folder = tmp_path / "bin", tmp_path / "ft"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (folder / "stacks/native-1b2c/bin").mkdir(parents=True)
    (folder / "current").symlink_to("stacks/native-1b2c")
    remember(Cluster((Path("localhost.ini"),), cluster(host("x", prefix=str(folder)))))
    return folder


def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make a new Python find the collection like an installed collection."""
    where = tmp_path / "site/ansible_collections/ftcluster"
    where.mkdir(parents=True)
    (where / "cluster").symlink_to(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def test_facts_are_those_that_preflight_gathers(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, tmp_path)
    found = slurm.cluster_of_job(job("node1", "node2"))
    assert (found.slurm_job, found.addressed(["node1", "node2"])) == ("12", ("localhost",))
    first, second = found.facts.hosts
    assert (first.name, second.name) == ("node1", "node2")
    assert (first.stack, first.prefix, first.cores) == ("native", str(prefix), 1)
    assert first.hostname == socket.gethostname()
    assert not list(prefix.glob(".slurm-*"))


def test_all_nodes_that_cannot_be_used_are_named(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, tmp_path)
    with pytest.raises(FtclusterError) as failed:
        slurm.gather(job("node1", "lost", "apart"), str(prefix))
    first, second = failed.value.message.split("\n  ")
    assert first.startswith("lost: ")
    assert "node not available" in first
    assert second.startswith(f"apart: it does not see the folder {prefix}")
    (prefix / "current").unlink()
    with pytest.raises(FtclusterError, match=r"node1: no stack is set up"):
        slurm.gather(job("node1"), str(prefix))


@pytest.mark.usefixtures("prefix")
def test_what_the_account_of_setup_trains_is_no_users_job() -> None:
    with pytest.raises(UsageError, match="3 times"):
        slurm.cluster_of_job(slurm.Allocation("12", NODES, (1, 1, 1), "xeon1", 3, 0))
    remember(Cluster((), cluster(host("x", rank_user="ftcluster"))))
    with pytest.raises(FtclusterError, match="runs ranks as the account ftcluster"):
        slurm.cluster_of_job(job("node1"))
    assert VM.rank_user == ""
