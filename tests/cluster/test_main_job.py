"""Setup, training and further commands on this machine with real Ansible, MPI and torch."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.lock import read_lock
from packaging.utils import canonicalize_name

from ftcluster_common import RELEASE
from tests.cluster.cluster import FEW_PAIRS
from tests.cluster.conftest import Machine
from tests.programs import CONTROL, ROOT, Home, interrupt_when


def test_setup_again_changes_nothing(machine: Machine) -> None:
    prefix = f"ftcluster_prefix={machine.home.prefix}"
    done = machine.home.run("setup", "--json", "-e", prefix)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hosts"]["localhost"]["changed"] == 0
    assert machine.first_setup["hosts"]["localhost"]["changed"] > 0


def test_another_control_node_keeps_what_the_cluster_has(machine: Machine, tmp_path: Path) -> None:
    """Use the cluster of the last setup until the inventory or an option names another cluster."""
    prefix = machine.home.prefix
    other = Home(tmp_path, prefix)
    words = ("setup", "localhost", "--tags", "preflight", "-e", f"ftcluster_prefix={prefix}")
    link = prefix / "current"
    stack = link.readlink()
    newer, named = prefix / "stacks/native-trackers-0a", tmp_path / "inventory.ini"
    packages = newer / "lib/python3.11/site-packages"
    (packages / "ftcluster_train-99.0.dist-info").mkdir(parents=True)
    (packages / "ftcluster_common/protocol").mkdir(parents=True)
    # simulates a release that numbers its documents
    (packages / "ftcluster_common/protocol/formats.py").touch()
    ours = (ROOT / "inventory/localhost.ini").read_text(encoding="utf-8")
    named.write_text(f"{ours}[all:vars]\ntorch_stack_name=native\n")
    try:
        link.unlink()
        link.symlink_to(newer)
        kept = other.run(*words)
        assert kept.returncode == 1
        assert "stack native-trackers, because the cluster uses it" in kept.stderr
        assert "the hosts have ftcluster 99.0, but this control node has the older" in kept.stderr
        switched = other.run(words[0], str(named), *words[2:], "--downgrade")
        assert switched.returncode == 0, switched.stderr
        assert "stack native replaces native-trackers, because you requested it" in switched.stderr
    finally:
        link.unlink()
        link.symlink_to(stack)
        shutil.rmtree(newer)


def test_the_stack_is_what_the_engine_was_tested_with_and_has_no_ansible(machine: Machine) -> None:
    """scripts/environment installs the same packages for tests/engine."""

    def pip(python: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(python), "-m", "pip", *arguments], capture_output=True, text=True, check=False
        )

    stack = dict(
        line.split("==") for line in pip(machine.python, "list", "--format=freeze").stdout.split()
    )
    [python] = (path.name for path in (machine.python.parents[1] / "lib").glob("python*"))
    files = ROOT / "roles/torch_stack/files"
    lock = (files / "native.txt").read_text()
    # if the CPU index was not reachable, torch is the build of a package index
    if "+cpu" not in stack["torch"]:
        lock += (files / "native-cuda.txt").read_text()
    pins = read_lock(lock, python.removeprefix("python"))
    found = {canonicalize_name(name): version.split("+")[0] for name, version in stack.items()}
    assert found.pop("ftcluster-train").startswith(RELEASE)
    assert found == {name: pin.version for name, pin in pins.items()}
    control = pip(CONTROL / "python", "list", "--format=freeze").stdout.lower()
    assert "ansible-core==" in control
    assert "torch" not in control
    assert pip(machine.python, "check").returncode == 0


def test_a_training_on_two_ranks(machine: Machine) -> None:
    done = machine.first_training
    result = json.loads(done.stdout)
    assert result["state"] == "done"
    assert result["world_size"] == 2
    assert 0 < result["metrics"]["accuracy"] <= 1
    assert result["samples_per_second"] > 0
    run_dir = Path(result["model"]).parent
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "end"
    equal = next(event for event in events if event["event"] == "parameters")
    assert equal["equal"] is True
    placement = next(event for event in events if event["event"] == "placement")["ranks"]
    [host] = json.loads(machine.home.run("plan", "quickstart", "--json").stdout)["hosts"]
    for place, rank in zip(placement, host["ranks"], strict=True):
        assert (place["cpus"], place["threads"]) == (rank["cpus"], rank["threads"])
    # plain lines on stderr, one per fact
    assert "training: 2 ranks, 1 thread each" in done.stderr
    assert re.search(r"^step 10/\d+  epoch .* loss .* samples/s", done.stderr, re.MULTILINE)
    assert "evaluation at step" in done.stderr
    assert machine.home.left_running() == []


def test_real_data_of_the_users(machine: Machine, test_data: Path) -> None:
    done = machine.home.run(
        "train", "mrpc", "--json", "--ranks-per-host", "2",
        "--data", str(test_data / "mrpc"), "--model", str(machine.model),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["f1"] >= 0.83


def test_ctrl_c_during_training(machine: Machine) -> None:
    record = machine.home.prefix / "cluster.json"  # another control node changes this record
    ms = {
        "ms": {"gloo": 1.0, "impi": 2.0},
        "bytes": 4194304,
        "hosts": ["localhost"],
        "stack": "native",
    }
    record.write_text(json.dumps({"format": 1, "all_reduce": {"setup": ms}}) + "\n")
    process = machine.home.start("train", *FEW_PAIRS, "training.num_train_epochs=50", "--json")
    said, last, code, out = interrupt_when(process, "step 10/")
    assert "the cluster was changed from elsewhere: its measurements; planning again" in said
    assert code == 130
    result = json.loads(out)
    assert (result["state"], result["world_size"], result["model"]) == ("stopped", 2, None)
    assert last.startswith("stopped: run quickstart-")
    assert "no rank is left running" in last
    assert machine.home.left_running() == []


def test_ctrl_c_during_setup(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "ftcluster")
    process = home.start("setup", "localhost", "-v", "-e", f"ftcluster_prefix={home.prefix}")
    _, last, code, _ = interrupt_when(process, "stack:")
    assert code == 130
    assert last == "stopped: setup is not finished; run it again to resume"
    assert home.left_running() == []


@pytest.mark.needs("ssh")
def test_a_host_that_does_not_answer(home: Home, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.ini"
    inventory.write_text("nobody ansible_host=127.0.0.1 ansible_port=9\n")
    done = home.run("setup", str(inventory))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "setup failed on 1 of 1 hosts" in done.stderr
    assert "nobody: " in done.stderr
    assert "Connection refused" in done.stderr
