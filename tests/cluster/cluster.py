"""A cluster of three hosts that the tests of a folder share."""

from dataclasses import dataclass

from tests.cluster.control import NAMES, Control

TWO = ("--nodes", "2", "--ranks-per-host", "1")
# 20 steps of a quarter of the batch: what quickstart learns is tested by ordinary_user/test_demo.py
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
        # 1 is none; 2 and 3 are failures of pgrep, such as an account that is not there
        assert (left.returncode, left.stdout) == (1, ""), f"{name}: {left.stdout}{left.stderr}"
