"""The launch document that the control node writes for the supervisor."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster_common.protocol.launch import (
    Launch,
    RankCores,
    RankHost,
    mesh_variables,
    mpirun_command,
    read_launch,
)

LINK = "/opt/ft/current"
CORES = (RankCores("0-3", 3, (0,)), RankCores("4-7", 4))


def launch(folder: Path, script: bool = False) -> Launch:
    return Launch(
        run_dir=str(folder),
        program=("-m", "x"),
        env={"OTHER": f"{LINK}/x"},
        hosts=(
            RankHost("node1", "10.0.0.1", CORES, ("lib/libiomp5.so", "/usr/lib/a.so"), {"A": "b"}),
            RankHost("node2", "10.0.0.2", CORES[:1]),
        ),
        ssh_config="/mesh/ssh_config",
        stack=LINK,
        script=script,
    )


@pytest.mark.parametrize("script", [False, True])
def test_the_supervisor_reads_what_was_written(tmp_path: Path, script: bool) -> None:
    written = launch(tmp_path, script)
    (tmp_path / "launch.json").write_text(json.dumps(written.to_dict()))
    assert read_launch(tmp_path) == written
    assert sorted(written.shown()) == ["argv", "env", "hostfile", "hosts", "ssh_config", "stack"]
    # a script may load from the Hub itself
    assert ("HF_HUB_OFFLINE" in written.supervised_variables) == (not script)


def test_the_command_of_the_stack_that_the_ranks_start_from(tmp_path: Path) -> None:
    real = "/opt/ft/stacks/native-1"
    command = mpirun_command(replace(launch(tmp_path), stack=real))
    assert command.argv == (
        f"{real}/bin/mpirun", "-machinefile", f"{tmp_path}/hostfile", "-n", "3",
        "-prepend-pattern", f"[{tmp_path.name} %r] ",
        f"{real}/bin/python", "-m", "ftcluster_train.host.bind", f"{real}/bin/python", "-m", "x",
    )  # fmt: skip
    assert command.hostfile == "10.0.0.1:2\n10.0.0.2:1\n"
    first, second = json.loads(command.env.pop("FTCLUSTER_PLACEMENT"))["kinds"]
    assert command.env == {"OTHER": f"{LINK}/x"}
    assert first == {
        "env": {"LD_PRELOAD": f"{real}/lib/libiomp5.so:/usr/lib/a.so", "A": "b"},
        "ranks": [
            {"cpus": "0-3", "threads": 3, "memory": [0]},
            {"cpus": "4-7", "threads": 4, "memory": []},
        ],
    }
    assert second == {"env": {}, "ranks": first["ranks"][:1]}


def test_hydra_uses_the_mesh_where_there_is_one() -> None:
    assert mesh_variables("", "eth0") == {}
    found = mesh_variables("/mesh/ssh_config", "eth0")
    assert found["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] == "-F /mesh/ssh_config"
    assert found["I_MPI_HYDRA_IFACE"] == "eth0"
    assert "I_MPI_HYDRA_IFACE" not in mesh_variables("/mesh/ssh_config", "")
