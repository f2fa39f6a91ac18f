"""A cluster of three hosts that the tests of a folder share."""

from dataclasses import dataclass

from tests.cluster.control import NAMES, Control

TWO = ("--nodes", "2", "--ranks-per-host", "1")
# 20 steps of a quarter of the batch; ordinary_user/test_demo.py tests the quality of quickstart's
# model
FEW_PAIRS = ("data=generated:train=160,validation=40,seed=1", "batch_size=8")
PREFIX = "/opt/ftcluster"
STACK = f"{PREFIX}/current"
MESH = f"{PREFIX}/mesh"


@dataclass(frozen=True)
class Cluster:
    """The hosts after setup.

    Attributes:
        before: the former state of each host, as text.
    """

    control: Control
    inventory: str
    before: dict[str, str]


def no_rank_is_left(cluster: Cluster) -> None:
    for name in NAMES:
        left = cluster.control.bed.exec_(name, "pgrep", "-u", "ftcluster", "-a")
        # code 1: no process; codes 2 and 3 are failures of pgrep, for example because the account
        # is missing
        assert (left.returncode, left.stdout) == (1, ""), f"{name}: {left.stdout}{left.stderr}"
