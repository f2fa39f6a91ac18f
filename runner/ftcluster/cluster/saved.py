"""The cluster of the last setup, saved on the control node."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ftcluster.ansible.inventory import LOCALHOST
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.errors import FtclusterError
from ftcluster.paths import bundled, make_state_dir, state_dir, write_atomically

_BUNDLED = bundled("inventory") / f"{LOCALHOST}.ini"


@dataclass(frozen=True)
class Drained:
    """Why new runs leave a host out, and since when, such as 2026-11-23."""

    why: str
    since: str


@dataclass(frozen=True)
class Cluster:
    """A cluster that was set up.

    Attributes:
        inventories: what it was made from.
        options: arguments of ansible-playbook that say how to reach them.
        pattern: which hosts of the inventories it has, or "" for all.
        slurm_job: the Slurm job that has the hosts, or ""; all see the head's folders, and
            the inventory has the head alone.
        drained: hosts that are set up, but that new runs leave out.
    """

    inventories: tuple[Path, ...]
    facts: ClusterFacts
    options: tuple[str, ...] = ()
    pattern: str = ""
    slurm_job: str = ""
    drained: Mapping[str, Drained] = field(default_factory=dict)

    @property
    def usable(self) -> ClusterFacts:
        """The hosts that new runs may have; the head is one of them."""
        hosts = tuple(host for host in self.facts.hosts if host.name not in self.drained)
        return replace(self.facts, hosts=hosts)

    def addressed(self, names: Sequence[str]) -> tuple[str, ...]:
        """The inventory's hosts through which these hosts of the cluster are reached."""
        return (LOCALHOST,) if self.slurm_job else tuple(names)


def remember(cluster: Cluster) -> None:
    """Save the cluster, for later commands."""
    document = {
        # the bundled one by its name: another installation has it elsewhere
        "inventories": [LOCALHOST if p == _BUNDLED else str(p) for p in cluster.inventories],
        "hosts": cluster.pattern,
        "options": cluster.options,
        "facts": cluster.facts.to_dict(),
        "drained": {name: asdict(one) for name, one in cluster.drained.items()},
    }
    make_state_dir(state_dir())
    write_atomically(_file(), json.dumps(document, indent=1) + "\n")


def recall() -> Cluster:
    """The cluster of the last setup.

    Raises:
        FtclusterError: there is none, or its file cannot be read.
    """
    try:
        document = json.loads(_file().read_text(encoding="utf-8"))
        facts = ClusterFacts.from_dict(document["facts"])
        inventories = tuple(
            _BUNDLED if one == LOCALHOST else Path(one) for one in document["inventories"]
        )
        drained = {name: Drained(**one) for name, one in document.get("drained", {}).items()}
        options = tuple(document["options"])
        return Cluster(inventories, facts, options, document["hosts"], drained=drained)
    except FileNotFoundError:
        raise FtclusterError(
            "no cluster has been set up from here",
            "set one up: ftcluster setup inventory.ini; or this machine: ftcluster setup localhost",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise FtclusterError(
            f"{_file()} cannot be read: {error}", "run ftcluster setup again; it writes a new one"
        ) from error


def recall_of(inventories: Sequence[Path]) -> Cluster | None:
    """The cluster of the last setup, if it was made from these inventories."""
    try:
        cluster = recall()
    except FtclusterError:
        return None
    same = cluster.inventories == tuple(path.absolute() for path in inventories)
    return cluster if same else None


def forget(inventories: Sequence[Path]) -> None:
    """Delete the saved cluster, if it was made from these inventories."""
    if recall_of(inventories):
        _file().unlink()


def _file() -> Path:
    return state_dir() / "cluster.json"
