"""What the control node writes for the supervisor."""

import json
from pathlib import Path

import pytest

from ftcluster_common.launch import Host, Launch, mesh_variables, read_launch

LINK = "/opt/ft/current"
PLACEMENT = {"kinds": [{"env": {"LD_PRELOAD": f"{LINK}/lib/libiomp5.so"}}]}


def launch(folder: Path, script_ranks: int | None = None) -> Launch:
    return Launch(
        run_dir=str(folder),
        argv=(
            f"{LINK}/bin/mpirun",
            "-n",
            "1",
            f"{LINK}/bin/python",
            "-m",
            "ftcluster_train.host.bind",
        ),
        env={"FTCLUSTER_PLACEMENT": json.dumps(PLACEMENT), "OTHER": "/opt/ft/currently/x"},
        hostfile="10.0.0.1:1\n",
        hosts=(Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2")),
        ssh_config="/mesh/ssh_config",
        stack=LINK,
        script_ranks=script_ranks,
    )


@pytest.mark.parametrize("script_ranks", [None, 2])
def test_the_supervisor_reads_what_was_written(tmp_path: Path, script_ranks: int | None) -> None:
    written = launch(tmp_path, script_ranks)
    (tmp_path / "launch.json").write_text(json.dumps(written.to_dict()))
    assert read_launch(tmp_path) == written
    assert sorted(written.shown()) == ["argv", "env", "hostfile", "hosts", "ssh_config", "stack"]
    # a script may load from the Hub by itself
    assert ("HF_HUB_OFFLINE" in written.variables) == (script_ranks is None)


def test_a_launch_by_the_real_folder_of_its_stack(tmp_path: Path) -> None:
    real = Path("/opt/ft/stacks/native-1")
    found = launch(tmp_path).with_stack(real)
    python = f"{real}/bin/python"
    assert found.argv == (
        f"{real}/bin/mpirun",
        "-n",
        "1",
        python,
        "-m",
        "ftcluster_train.host.bind",
    )
    [kind] = json.loads(found.env["FTCLUSTER_PLACEMENT"])["kinds"]
    assert kind["env"]["LD_PRELOAD"] == f"{real}/lib/libiomp5.so"
    assert (found.env["OTHER"], found.stack) == ("/opt/ft/currently/x", str(real))


def test_hydra_uses_the_mesh_where_there_is_one() -> None:
    assert mesh_variables("", "eth0") == {}
    found = mesh_variables("/mesh/ssh_config", "eth0")
    assert found["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] == "-F /mesh/ssh_config"
    assert found["I_MPI_HYDRA_IFACE"] == "eth0"
    assert "I_MPI_HYDRA_IFACE" not in mesh_variables("/mesh/ssh_config", "")
