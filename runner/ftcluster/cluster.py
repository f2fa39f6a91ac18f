"""The cluster that was set up last, remembered on the control node."""

import json
from dataclasses import dataclass
from pathlib import Path

from ftcluster.errors import FtclusterError
from ftcluster.facts import ClusterFacts
from ftcluster.paths import make_state_dir, state_dir, write_atomically


@dataclass(frozen=True)
class Cluster:
    """A cluster that setup has finished.

    Attributes:
        inventory: the inventory it was made from.
        facts: what its hosts are.
        options: arguments of ansible-playbook that say how to reach them.
    """

    inventory: Path
    facts: ClusterFacts
    options: tuple[str, ...] = ()


def remember(cluster: Cluster) -> None:
    """Make this the cluster that later commands use."""
    document = {
        "inventory": str(cluster.inventory),
        "options": cluster.options,
        "facts": cluster.facts.to_dict(),
    }
    make_state_dir(state_dir())
    write_atomically(_file(), json.dumps(document, indent=1) + "\n")


def recall() -> Cluster:
    """The cluster that was set up last.

    Raises:
        FtclusterError: there is none, or what is remembered cannot be read.
    """
    try:
        document = json.loads(_file().read_text(encoding="utf-8"))
        facts = ClusterFacts.from_dict(document["facts"])
        return Cluster(Path(document["inventory"]), facts, tuple(document["options"]))
    except FileNotFoundError:
        raise FtclusterError(
            "no cluster has been set up from here",
            "set one up: ftcluster setup inventory.ini; or this machine: ftcluster setup localhost",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise FtclusterError(
            f"{_file()} cannot be read: {error}", "run ftcluster setup again; it writes it anew"
        ) from error


def forget(inventory: Path) -> None:
    """Remember this inventory's cluster no longer, if it is the one that is remembered."""
    try:
        if recall().inventory == inventory:
            _file().unlink()
    except FtclusterError:
        return


def _file() -> Path:
    return state_dir() / "cluster.json"
