"""The cluster of three hosts that the tests share, and what they all need to know of it."""

from dataclasses import dataclass

from tests.cluster.hosts.control import Control

NAMES = ("node0", "node1", "node2")
HEAD, OTHER, THIRD = NAMES
ADDRESS = {name: f"198.18.0.{10 + number}" for number, name in enumerate(NAMES)}
TWO = ("--nodes", "2", "--ranks-per-host", "1")
STACK = "/opt/ftcluster/current"
MESH = "/opt/ftcluster/mesh"


@dataclass(frozen=True)
class Cluster:
    """The hosts after setup.

    Attributes:
        control: where it was set up from.
        inventory: all three hosts.
        before: what each host was before, as text.
    """

    control: Control
    inventory: str
    before: dict[str, str]


def no_rank_is_left(cluster: Cluster) -> None:
    for name in NAMES:
        left = cluster.control.bed.exec_(name, "pgrep", "-u", "ftcluster", "-a")
        # 1 is none; 2 and 3 are failures of pgrep, such as an account that is not there
        assert (left.returncode, left.stdout) == (1, ""), f"{name}: {left.stdout}{left.stderr}"
