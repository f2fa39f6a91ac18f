import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ftcluster.launch.mpirun import as_shell, render
from ftcluster.planning.plan import plan
from ftcluster.recipe.recipe import parse_recipe
from ftcluster_common.protocol.launch import Launch, mpirun_command
from ftcluster_common.protocol.network import RdmaDevice
from ftcluster_train.rank.bind import find_place
from tests.unit.clusters import STACKS, VM, cluster, host, placed

RECIPE = parse_recipe("model: m\ndata: d\ntext_columns: [a]\n", "r.yml")


def launch_of_two(**head: object) -> Launch:
    first = host("node1", **{"network_address": "10.0.0.1", "network_interface": "eth0", **head})
    second = host("node2", network_address="10.0.0.2", network_interface="ens5", cores=8)
    return render(plan(cluster(first, second), RECIPE, STACKS), "r-1")


def test_other_hosts_are_started_over_the_mesh() -> None:
    launch = launch_of_two()
    assert launch.ssh_config == "/opt/ftcluster/mesh/ssh_config"
    assert {key: value for key, value in launch.env.items() if "HYDRA" in key or "PORT" in key} == {
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-F /opt/ftcluster/mesh/ssh_config",
        "I_MPI_HYDRA_BRANCH_COUNT": "4096",
        "I_MPI_HYDRA_IFACE": "eth0",
        "I_MPI_PORT_RANGE": "29600:29799",
    }
    assert launch.env["MASTER_ADDR"] == "10.0.0.1"
    assert "I_MPI_HYDRA_IFACE" not in launch_of_two(network_interface="").env


def test_a_slurm_job_starts_its_nodes_by_srun_and_by_name() -> None:
    hosts = [host(f"xeon{n}", network_address=f"10.0.0.{n}") for n in (1, 2)]
    planned = plan(cluster(*hosts), RECIPE, STACKS)
    launch = render(planned, "r-1", slurm_job="12")
    assert {
        key: value for key, value in launch.env.items() if "HYDRA" in key or "SLURM" in key
    } == {
        "I_MPI_HYDRA_BOOTSTRAP": "slurm",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "--overlap --cpu-bind=none",
        "I_MPI_HYDRA_IFACE": "eth0",
        "SLURM_JOB_ID": "12",
    }
    assert (launch.slurm_job, launch.ssh_config) == ("12", "")
    assert mpirun_command(launch).hostfile == "xeon1:1\nxeon2:1\n"
    assert launch.env["MASTER_ADDR"] == "10.0.0.1"
    assert "ssh" not in as_shell(launch, planned, {})  # all nodes see the folder


def test_hosts_go_by_address_with_the_head_first() -> None:
    launch = launch_of_two(cores=16, numa_nodes=2)
    command = mpirun_command(launch)
    assert command.hostfile == "10.0.0.1:2\n10.0.0.2:1\n"
    assert command.argv[command.argv.index("-n") + 1] == "3"


def test_every_host_has_its_own_cores_threads_and_interface() -> None:
    placement = placed(launch_of_two(cores=4, tcmalloc=""))
    assert placement["hosts"] == [[0, 1], [1, 1]]
    first, second = placement["kinds"]
    assert first["ranks"] == [{"cpus": "0-3", "threads": 4, "memory": []}]
    assert second["ranks"] == [{"cpus": "0-7", "threads": 7, "memory": []}]
    assert first["env"] == {"GLOO_SOCKET_IFNAME": "eth0", "FI_TCP_IFACE": "eth0"}
    assert second["env"]["GLOO_SOCKET_IFNAME"] == "ens5"
    assert second["env"]["LD_PRELOAD"] == VM.tcmalloc
    assert second["env"]["TCMALLOC_RELEASE_RATE"] == "0"
    assert "LD_PRELOAD" not in launch_of_two().env  # mpirun and Hydra run without it


def test_mpi_uses_the_network_of_the_run() -> None:
    device = RdmaDevice("mlx5_0", "mlx5_core", False, True, ("eth0", "ens5"), True)
    libraries = ("libibverbs.so.1", "librdmacm.so.1")
    hosts = [
        host(name, network_interface=interface, rdma=(device,), rdma_libraries=libraries,
             locks_memory=True)
        for name, interface in (("node1", "eth0"), ("node2", "ens5"))
    ]  # fmt: skip
    launch = render(plan(cluster(*hosts), RECIPE, STACKS), "r-1")
    assert launch.env["FI_PROVIDER"] == "verbs;ofi_rxm"
    kinds = placed(launch)["kinds"]
    assert [kind["env"]["FI_VERBS_IFACE"] for kind in kinds] == ["eth0", "ens5"]
    assert "FI_TCP_IFACE" not in str(kinds)
    assert launch_of_two().env["FI_PROVIDER"] == "tcp"
    alone = render(plan(cluster(hosts[0]), RECIPE, STACKS), "r-1")
    assert "FI_" not in str(alone.env)


def test_intels_openmp_is_preloaded_after_the_allocator_and_sleeps_soon() -> None:
    [first, _] = placed(launch_of_two(openmp="/opt/libiomp5.so"))["kinds"]
    assert first["env"]["LD_PRELOAD"] == f"{VM.tcmalloc}:/opt/libiomp5.so"
    assert first["env"]["KMP_BLOCKTIME"] == "1"


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_a_large_cluster_fits_into_one_variable(kinds: int) -> None:
    """Also if hosts of several kinds alternate."""
    hosts = [
        host(f"n{i}", network_address=f"10.0.{i // 250}.{i % 250}", numa_nodes=8,
             cores=(64, 112, 256)[i % kinds], network_interface=f"eth{i % kinds}")
        for i in range(256)
    ]  # fmt: skip
    launch = render(plan(cluster(*hosts), replace(RECIPE, batch_size=4096), STACKS), "r-1")
    assert len(mpirun_command(launch).env["FTCLUSTER_PLACEMENT"]) < 10_000
    placement = placed(launch)
    assert len(placement["kinds"]) == kinds
    assert sum(count for _, count in placement["hosts"]) == 256


def test_another_program_is_bound_the_same_way() -> None:
    decided = plan(cluster(VM), RECIPE, STACKS)
    ours = mpirun_command(render(decided, "r-1"))
    other = mpirun_command(render(decided, "r-1", ["-c", "x y"]))
    python = "/opt/ftcluster/current/bin/python"
    assert other.argv[-6:] == (python, "-m", "ftcluster_train.host.bind", python, "-c", "x y")
    assert (ours.env, ours.hostfile) == (other.env, other.hostfile)


def test_ranks_of_one_host_meet_where_no_other_host_reaches_them() -> None:
    alone = host("node1", network_address="10.0.0.1", network_interface="eth0")
    launch = render(plan(cluster(alone), RECIPE, STACKS), "r-1")
    assert (launch.ssh_config, launch.hosts[0].address) == ("", "127.0.0.1")
    assert not any("HYDRA" in name for name in launch.env)
    assert launch.env["MASTER_ADDR"] == "127.0.0.1"
    place = find_place(placed(launch), 0)
    assert place.env["GLOO_SOCKET_IFNAME"] == "lo"
    assert "10.0.0.1" not in json.dumps(launch.to_dict())


def test_what_is_pasted_does_what_it_says(tmp_path: Path) -> None:
    """Run the commands in a real shell, with programs that record their arguments."""
    prefix = tmp_path / "a prefix"
    bin_dir = prefix / "current/bin"
    bin_dir.mkdir(parents=True)
    heard = tmp_path / "heard"
    for folder, name, more in (
        (bin_dir, "mpirun", 'echo "$FTCLUSTER_PLACEMENT|$MASTER_PORT|$HF_HUB_OFFLINE" >> "$0.env"'),
        (bin_dir, "python", '[ "$1" != -c ] || echo 29517'),
        (tmp_path, "ssh", 'cat >> "$0.in"'),
    ):
        (folder / name).write_text(
            f'#!/bin/sh\necho "{name}: $*" >> "{heard}"\n{more}\n', encoding="utf-8"
        )
        (folder / name).chmod(0o755)
    decided = plan(
        cluster(host("n1", prefix=str(prefix)), host("n2", prefix=str(prefix))), RECIPE, STACKS
    )
    launch = render(decided, "r-1")
    pasted = as_shell(launch, decided, {"run": "r-1", "text": "it's {{ odd }}"})
    subprocess.run(
        ["sh", "-eu", "-c", pasted], check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}
    )
    run_dir = prefix / "runs/r-1"
    command = mpirun_command(launch)
    assert (run_dir / "hostfile").read_text() == command.hostfile
    assert json.loads((run_dir / "job.json").read_text())["text"] == "it's {{ odd }}"
    assert (tmp_path / "ssh.in").read_text() == (run_dir / "job.json").read_text()
    prepared, to_host, port, started = heard.read_text().splitlines()
    assert prepared == f"python: -m ftcluster_train.engine.prepare {run_dir}"
    assert to_host.startswith(f"ssh: -F {prefix}/mesh/ssh_config n2 cd / && umask 077 && mkdir -p ")
    assert "free_port" in port
    assert started == f"mpirun: {' '.join(command.argv[1:])}"
    environment = f"{command.env['FTCLUSTER_PLACEMENT']}|29517|1\n"
    assert (bin_dir / "mpirun.env").read_text() == environment
