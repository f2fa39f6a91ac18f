from dataclasses import replace
from typing import Any

import pytest

from ftcluster.cluster.facts import HostFacts
from ftcluster.errors import PlanError
from ftcluster.planning.network import choose_network
from ftcluster.planning.plan import plan
from ftcluster.planning.spares import plan_with_spares
from ftcluster.recipe.recipe import parse_recipe
from ftcluster_common.protocol.network import (
    EFA,
    PSM2,
    PSM3,
    TCP,
    VERBS,
    HostNetwork,
    RdmaDevice,
    network_variables,
)
from tests.unit.clusters import STACKS, cluster, host

RECIPE = parse_recipe("model: m\ndata: d\ntext_columns: [a]\n", "r.yml")
ALL_LIBRARIES = (
    "libibverbs.so.1", "librdmacm.so.1", "libefa.so.1", "libpsm2.so.2", "libnuma.so.1",
    "libuuid.so.1",
)  # fmt: skip


def with_rdma(name: str, driver: str = "mlx5_core", **changes: Any) -> HostFacts:
    """Return a host with a usable device, except for these changes."""
    device = RdmaDevice("rdma0", driver, False, True, ("eth0",), True)
    return host(
        name, rdma=(replace(device, **changes),), rdma_libraries=ALL_LIBRARIES, locks_memory=True
    )


@pytest.mark.parametrize(
    ("driver", "provider"),
    [
        ("mlx5_core", VERBS), ("mlx4_core", VERBS), ("bnxt_en", VERBS), ("ice", PSM3),
        ("hfi1", PSM2), ("efa", EFA),
    ],
)  # fmt: skip
def test_by_the_device_that_every_host_has(driver: str, provider: str) -> None:
    chosen, why = choose_network([with_rdma("a", driver), with_rdma("b", driver)])
    assert chosen == provider
    assert why.endswith("rdma0 on a, b")


def test_efa_has_no_network_interface() -> None:
    hosts = [with_rdma(name, "efa", interfaces=()) for name in "ab"]
    assert choose_network(hosts)[0] == EFA


def test_tcp_without_rdma() -> None:
    assert choose_network([host("a"), host("b")]) == (TCP, "no host has an RDMA device")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"active": False}, "no port of rdma0 is active"),
        ({"opens": False}, "may not open rdma0"),
        ({"interfaces": ("eth1",)}, "no RDMA device on eth0"),
        ({"driver": "ice", "iwarp": True}, "no provider for rdma0 (iWARP)"),
        ({"driver": "vendor"}, "no provider for rdma0 (driver vendor)"),
        ({"driver": ""}, "no provider for rdma0 (driver not reported)"),
        ({"driver": "ice"}, "providers differ: verbs;ofi_rxm on a, psm3 on b"),
    ],
)
def test_tcp_where_one_host_cannot_use_its_device(changes: dict[str, Any], word: str) -> None:
    provider, why = choose_network([with_rdma("a"), with_rdma("b", **changes)])
    assert provider == TCP
    assert word in why
    assert why.endswith(" on b")


def test_tcp_where_something_of_the_host_is_missing() -> None:
    good = with_rdma("a")
    for changes, word in (
        ({"rdma": ()}, "no RDMA device on b"),
        ({"rdma_libraries": ("libibverbs.so.1",)}, "verbs;ofi_rxm needs librdmacm.so.1 on b"),
        ({"locks_memory": False}, "limit of locked memory"),
    ):
        provider, why = choose_network([good, replace(with_rdma("b"), **changes)])  # type: ignore[arg-type]
        assert provider == TCP
        assert word in why
    # setup raises the limit of the account that it creates
    account = replace(with_rdma("b"), locks_memory=False, rank_user="ftcluster")
    assert choose_network([good, account])[0] == VERBS


def test_of_several_devices_one_that_can_be_used() -> None:
    [one] = with_rdma("a").rdma
    both = host("a", rdma=(replace(one, active=False), replace(one, name="rdma1")))
    both = replace(both, rdma_libraries=ALL_LIBRARIES, locks_memory=True)
    assert choose_network([both])[1].endswith("rdma1 on a")


@pytest.mark.parametrize(("asked", "value"), [("tcp", TCP), ("verbs", VERBS), ("mlx", "mlx")])
def test_the_inventory_overrides(asked: str, value: str) -> None:
    hosts = [replace(with_rdma(name), network_provider=asked) for name in "ab"]
    assert choose_network(hosts) == (value, "set in the inventory: ftcluster_network_provider")


def test_the_inventory_asks_for_several() -> None:
    hosts = cluster(host("a", network_provider="tcp"), host("b"))
    with pytest.raises(PlanError, match="the inventory sets tcp on a, auto on b"):
        plan(hosts, RECIPE, STACKS)


def test_variables_that_bind_a_provider_to_the_network() -> None:
    own = with_rdma("a").network
    nowhere = HostNetwork("")
    assert network_variables(TCP, own) == {"FI_TCP_IFACE": "eth0"}
    assert network_variables(VERBS, own) == {"FI_VERBS_IFACE": "eth0"}
    assert network_variables(PSM3, own) == {"PSM3_NIC": "rdma0"}
    for provider in (EFA, PSM2, ""):
        assert network_variables(provider, own) == {}
    for provider in (TCP, VERBS, PSM3):
        assert network_variables(provider, nowhere) == {}


def test_in_a_plan() -> None:
    launch = plan(cluster(with_rdma("a"), with_rdma("b")), RECIPE, STACKS)
    [decision] = [one for one in launch.decisions if one.what == "network provider"]
    assert decision.value == launch.provider == VERBS
    assert "gloo" not in decision.why
    by_gloo = replace(RECIPE, training=replace(RECIPE.training, ddp_backend="gloo"))
    launch = plan(cluster(with_rdma("a"), with_rdma("b")), by_gloo, STACKS)
    [decision] = [one for one in launch.decisions if one.what == "network provider"]
    assert decision.why.endswith("only MPI uses it, gloo uses TCP")
    alone = plan(cluster(with_rdma("a")), RECIPE, STACKS)
    assert alone.provider == ""
    assert not [one for one in alone.decisions if one.what == "network provider"]


def test_a_spare_has_to_have_the_same() -> None:
    facts = cluster(with_rdma("a"), with_rdma("b"))
    spare = with_rdma("c")
    assert (
        plan_with_spares(facts, (spare,), RECIPE, STACKS, drained={}).spares[0].network
        == spare.network
    )
    with pytest.raises(PlanError) as refused:
        plan_with_spares(facts, (host("c"),), RECIPE, STACKS, drained={})
    assert "provider is verbs;ofi_rxm, but tcp with that host" in str(refused.value)
    assert "ftcluster_network_provider in the inventory" in str(refused.value)
