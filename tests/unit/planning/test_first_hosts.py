import pytest

from ftcluster.errors import PlanError
from ftcluster.planning.plan import first_hosts
from tests.unit.clusters import cluster, host

THREE = cluster(host("head"), host("b"), host("c"))


def test_the_head_is_always_among_them() -> None:
    assert first_hosts(THREE, 1).hosts == (host("head"),)
    assert [found.name for found in first_hosts(THREE, 2).hosts] == ["head", "b"]
    assert first_hosts(THREE, 3) == THREE


def test_more_hosts_than_there_are() -> None:
    with pytest.raises(PlanError, match="4 hosts are asked for, the cluster has 3: head, b, c"):
        first_hosts(THREE, 4)
