"""Runs of other versions: documents of older code, and older code with today's documents."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from ftcluster.operations.runs.runs import table
from ftcluster_common.given_files import GivenFileError
from ftcluster_common.protocol.job import read_job
from ftcluster_common.protocol.launch import read_launch, read_outline
from ftcluster_train.io.events import EventWriter
from ftcluster_train.supervisor.runs import read_run
from tests import previous
from tests.programs import ROOT
from tests.unit.supervisor.test_supervisor import supervisor

TRAIN = ROOT / "train/ftcluster_train"
# written by the release of 26 November: mpirun's command instead of hosts with ranks
OLDER = {
    "argv": ["/opt/ft/current/bin/mpirun", "-n", "2"],
    "env": {},
    "hostfile": "127.0.0.1:2\n",
    "hosts": [{"name": "node1", "address": "127.0.0.1"}],
    "idle": [],
    "ssh_config": "",
    "stack": "/opt/ft/current",
    "script_ranks": None,
    "grace_seconds": 1.0,
}
WRITE = """
import json, sys
from pathlib import Path
from ftcluster.recipe.recipe import load_recipe
from ftcluster_common.protocol.job import Job
from ftcluster_common.protocol.launch import Launch, RankCores, RankHost
from ftcluster_train.io.events import EventWriter
folder = Path(sys.argv[1])
hosts = (RankHost("node1", "127.0.0.1", (RankCores("0", 1, (0,)),), ("lib/a.so",), {"A": "b"}),)
launch = Launch(str(folder), ("-m", "x"), {"B": "c"}, hosts, "", "/opt/ft/current", idle=hosts)
job = Job("a-1", folder, folder.parent, load_recipe("mrpc"), "bf16", False, resume=("a-0",))
(folder / "launch.json").write_text(json.dumps(launch.to_dict()))
(folder / "job.json").write_text(json.dumps(job.to_dict()))
events = EventWriter(folder)
events.write("phase", doing="preparing")
events.write("end", state="done", exit_code=0, seconds=2.0)
"""
READ = """
import sys
from pathlib import Path
from ftcluster_common.protocol.job import read_job
from ftcluster_common.protocol.launch import read_launch
from ftcluster_train.supervisor.runs import read_run
from ftcluster.launch.events import EventReader
folder = Path(sys.argv[1])
launch, job = read_launch(folder), read_job(folder)
print(launch.run, len(launch.rank_hosts), job.recipe.name, read_run(folder, False).state)
print(*(event["event"] for event in EventReader(folder / "events.jsonl").new_events()))
"""

# modules that moved since the first commits that tests compare with: their names then
FORMER_NAMES = {
    "ftcluster_common.protocol.job": "ftcluster_common.job",
    "ftcluster_common.protocol.launch": "ftcluster_common.launch",
    "ftcluster_train.supervisor.runs": "ftcluster_train.host.runs",
}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return previous.unpack(tmp_path_factory.mktemp("previous"))


def run_there(older: Path, code: str, *arguments: str) -> str:
    """Run code with the previous release's packages; its imports have today's names."""
    for name, former in FORMER_NAMES.items():
        package, module = name.split(".", 1)
        folder = "common" if package == "ftcluster_common" else "train"
        if not (older / folder / package / f"{module.replace('.', '/')}.py").exists():
            code = code.replace(f"from {name} import", f"from {former} import")
    return previous.python(older, code, *arguments)


def test_documents_of_the_previous_release_are_read(older: Path, tmp_path: Path) -> None:
    run_there(older, WRITE, str(tmp_path))
    read = read_launch(tmp_path)
    assert (read.rank_hosts[0].name, read.idle[0].env, read.program) == (
        "node1", {"A": "b"}, ("-m", "x"),
    )  # fmt: skip
    assert (read_job(tmp_path).resume, read_job(tmp_path).recipe.name) == (("a-0",), "mrpc")
    assert read_run(tmp_path, alive=False).state == "done"


def test_the_previous_release_reads_todays_documents(older: Path, tmp_path: Path) -> None:
    """Without format numbers, which `run_folder` does not write for hosts that lack them."""
    from ansible_collections.ftcluster.cluster.plugins.modules.run_folder import without_number

    # today's code writes the documents again after reading them
    run_there(older, WRITE, str(tmp_path))
    (tmp_path / "events.jsonl").unlink()
    for name, document in (
        ("launch.json", read_launch(tmp_path).to_dict()),
        ("job.json", read_job(tmp_path).to_dict()),
    ):
        assert document["format"] >= 1
        (tmp_path / name).write_text(without_number(json.dumps(document)))
    events = EventWriter(tmp_path)
    events.write("phase", doing="preparing")
    events.write("end", state="stopped", exit_code=1, seconds=2.0)
    assert '"format": 1' in (tmp_path / "events.jsonl").read_text().splitlines()[0]
    assert run_there(older, READ, str(tmp_path)) == (f"{tmp_path.name} 1 mrpc stopped\nphase end\n")


def test_each_program_that_the_previous_release_starts_is_there(older: Path) -> None:
    """The previous release's control node and modules start programs by these names."""
    text = "".join(
        path.read_text(errors="replace")
        for name in ("runner", "playbooks", "plugins", "common")
        for path in (older / name).rglob("*")
        if path.suffix in (".py", ".yml", ".j2") and (name != "common" or path.stem == "launch")
    )
    names = set(re.findall(r"(?:ftcluster_train\.|program: )((?:host|engine|health)\.\w+)", text))
    programs = {name for name in names if "main()" in _text(older / "train/ftcluster_train", name)}
    assert {"host.bind", "host.supervisor", "engine.prepare", "engine.rank"} <= programs
    assert {name for name in programs if "main()" not in _text(TRAIN, name)} == set()


def _text(package: Path, name: str) -> str:
    path = package / f"{name.replace('.', '/')}.py"
    return path.read_text() if path.exists() else ""


def older_run(folder: Path, step: int = 252) -> None:
    (folder / "launch.json").write_text(json.dumps(OLDER))
    events = EventWriter(folder)
    events.write("phase", doing="training")
    numbers = dict.fromkeys(
        ("epoch", "loss", "grad_norm", "learning_rate", "samples_per_second", "train_seconds",
         "remaining_seconds"), 1.0,
    )  # fmt: skip
    events.write("step", step=step, **numbers)


def test_a_launch_that_is_too_old_says_so_and_what_to_do(tmp_path: Path) -> None:
    older_run(tmp_path)
    why = "launch.json was written by an older ftcluster .*without program.*ftcluster stop --force"
    with pytest.raises(GivenFileError, match=why):
        read_launch(tmp_path)
    assert read_outline(tmp_path).head == "node1"


def test_a_run_of_an_older_version_is_stopped_by_force(tmp_path: Path) -> None:
    """Stop by the id and the marks of the processes; launch.json is not read."""
    older_run(tmp_path)
    (tmp_path / "hub_token").write_text("hf_secret")
    rank = subprocess.Popen(["sleep", "1000"], env={**os.environ, "FTCLUSTER_RUN": tmp_path.name})
    try:
        said = supervisor("stop", tmp_path, "--force")
        assert said.stdout.startswith("stopped\n")
        assert "other hosts may still have secret files" in said.stderr
        assert rank.wait(timeout=30) < 0
    finally:
        rank.kill()
    assert read_run(tmp_path, alive=False).state == "stopped"
    assert not (tmp_path / "hub_token").exists()
    assert supervisor("stop", tmp_path, "--force").stdout.startswith("not running\n")


def test_a_run_whose_launch_is_damaged_is_stopped_by_force(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_bytes(b"\0")
    assert supervisor("stop", tmp_path, "--force").stdout.startswith("stopped\n")


def test_a_run_at_a_step_is_not_listed_as_preparing(tmp_path: Path) -> None:
    older_run(tmp_path)
    listed = read_run(tmp_path, alive=True)
    assert (listed.state, listed.step, listed.ranks) == ("running", 252, 0)
    assert "preparing" not in "\n".join(table([listed]))
    (tmp_path / "events.jsonl").unlink()
    assert "preparing" in "\n".join(table([read_run(tmp_path, alive=True)]))
