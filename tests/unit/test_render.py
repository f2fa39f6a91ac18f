import json

from ftcluster.plan import plan
from ftcluster.recipe import parse_recipe
from ftcluster.render import Launch, as_shell, render
from tests.unit.clusters import STACKS, VM, cluster, host

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


def test_hosts_go_by_address_with_the_head_first() -> None:
    launch = launch_of_two(numa_nodes=2)
    assert launch.hosts == (("node1", "10.0.0.1"), ("node2", "10.0.0.2"))
    assert launch.hostfile == "10.0.0.1:2\n10.0.0.2:1\n"
    assert launch.argv[launch.argv.index("-n") + 1] == "3"


def test_every_rank_has_as_many_threads_as_the_smallest_host_gives() -> None:
    assert launch_of_two(cores=4).env["OMP_NUM_THREADS"] == "4"
    assert launch_of_two(cores=64).env["OMP_NUM_THREADS"] == "8"


def test_a_head_whose_interface_is_not_known() -> None:
    assert "I_MPI_HYDRA_IFACE" not in launch_of_two(network_interface="").env


def test_one_host_has_no_mesh() -> None:
    launch = render(plan(cluster(VM), RECIPE, STACKS), "r-1")
    assert launch.ssh_config == ""
    assert launch.hosts == (("localhost", "127.0.0.1"),)
    assert not any("HYDRA" in name or "PORT" in name for name in launch.env)


def test_the_launch_as_the_supervisor_reads_it() -> None:
    document = json.loads(json.dumps(launch_of_two().to_dict()))
    assert document["hosts"] == [
        {"name": "node1", "address": "10.0.0.1"},
        {"name": "node2", "address": "10.0.0.2"},
    ]
    assert document["ssh_config"] == "/opt/ftcluster/mesh/ssh_config"
    assert sorted(document) == ["argv", "env", "hostfile", "hosts", "ssh_config"]


def test_the_mesh_stands_in_what_a_person_pastes() -> None:
    decided = plan(cluster(host("node1"), host("node2")), RECIPE, STACKS)
    pasted = as_shell(render(decided, "r-1"), decided)
    assert "'-F /opt/ftcluster/mesh/ssh_config'" in pasted
    assert "node1:1\nnode2:1\n" in pasted
