"""The option --hosts: the hosts that a run uses, and its head."""

from pathlib import Path

import pytest

from ftcluster.cluster.chosen_hosts import with_hosts
from ftcluster.cluster.record import Drained
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import UsageError
from ftcluster.launch import training_run
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.train import head_access
from ftcluster.progress.state import RunProgress
from tests.unit.clusters import cluster, host
from tests.unit.shell import Said, Shell

NAMES = ("node0", "node1", "node2", "node3")
FOUR = Cluster(
    (Path("/inventory.ini"),),
    cluster(*map(host, NAMES)),
    drained={"node3": Drained("fan", "2026-01-31")},
    record='{"format": 1, "drained": {"node3": {"why": "fan", "since": "2026-01-31"}}}',
)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("node2", "node1"), ["node2", "node1"]),
        (("node2", "node0", "node1"), ["node0", "node2", "node1"]),
        (("node1",), ["node1"]),
        ((), [*NAMES]),
    ],
)
def test_the_first_host_is_the_head_unless_the_clusters_head_is_among_them(
    names: tuple[str, ...], order: list[str]
) -> None:
    chosen = with_hosts(FOUR, names)
    assert [member.name for member in chosen.facts.hosts] == order
    assert chosen.head == "node0"  # the cluster's head, which has the record
    assert chosen.known["host"] == "node0"
    assert chosen.is_headed_elsewhere == (order[0] != "node0")
    assert with_hosts(chosen, names) == chosen


def test_all_wrong_names_are_refused_together(said: Said) -> None:
    with pytest.raises(UsageError) as error:
        with_hosts(FOUR, ("node9", "node1", "node3", "node1", "nodeX"))
    for name in ("node9", "node3", "node1", "nodeX"):
        assert name in error.value.message
    said(str(error.value))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record the launched trainings; no training starts."""
    remember(FOUR)
    runs: list[TrainingRun] = []

    def train(run: TrainingRun, *_: object, **__: object) -> RunProgress:
        runs.append(run)
        return RunProgress(run.id)

    monkeypatch.setattr(training_run, "train", train)
    return runs


def test_only_another_head_needs_access_to_the_other_hosts(
    shell: Shell, launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    meshes: list[tuple[str, tuple[str, ...]]] = []
    monkeypatch.setattr(
        head_access,
        "run_stages",
        lambda play, _, options, __: meshes.append((play.mesh_head, options[-2:])),
    )
    for hosts in ("node2,node1", "node1,node0", "node2"):
        shell(["train", "quickstart", "--detach", "--hosts", hosts])
    heads = [[member.name for member in run.plan.hosts] for run in launched]
    assert heads == [["node2", "node1"], ["node0", "node1"], ["node2"]]
    assert meshes == [("node2", ("--limit", "node2,node1"))]


@pytest.mark.parametrize(
    "command",
    [["train", "quickstart"], ["plan", "quickstart"], ["run", "--", "a.py"],
     ["sweep", "quickstart", "batch_size=8,16"], ["tune", "quickstart"],
     ["bench", "scaling", "quickstart"], ["bench", "allreduce"]],
)  # fmt: skip
def test_every_command_refuses_wrong_hosts_before_it_does_anything(
    shell: Shell, launched: list[TrainingRun], command: list[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("")
    place = command.index("--") if "--" in command else len(command)
    line = [*command[:place], "--hosts", "node9,node3", *command[place:]]
    refused = shell(line, 2)
    assert "node9" in refused.err
    assert "node3 is drained: fan" in refused.err
    assert not launched
    assert not list((tmp_path / "state").rglob("run.json"))
    assert shell([*command[:place], "--hosts", "node1,", *command[place:]], 2).err


def test_an_export_has_a_pod_for_each_host_and_slurm_chooses_its_nodes(shell: Shell) -> None:
    remember(FOUR)
    export = ["export", "k8s", "quickstart", "--image", "registry/node:1"]
    for hosts, count in (("node1,node2", 2), ("node2,node1,node0", 3)):
        text = shell([*export, "--hosts", hosts]).out
        assert f"replicas: {count}\n" in text, text
    assert "node3 is drained" in shell([*export, "--hosts", "node3,node1"], 2).err
    assert "--nodelist" in shell(["export", "slurm", "quickstart", "--hosts", "node1"], 2).err
