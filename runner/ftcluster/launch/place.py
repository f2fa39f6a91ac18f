"""Where the runs of a cluster are, and how the control node reaches them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcluster.cluster.saved import Cluster
from ftcluster.errors import FtclusterError
from ftcluster.paths import state_dir
from ftcluster_common.job import recipe_of
from ftcluster_common.recipe import Recipe

UNREACHABLE = "check that it is on and that ssh connects to it: ftcluster check"  # a hint


@dataclass(frozen=True)
class Place:
    """The hosts of a cluster's runs.

    Attributes:
        inventories: any that Ansible takes.
        hosts: the inventory's names, the head first.
        rank_user: the account that ranks run as, or "" for the login user.
        prefix: the cluster's folder on the head.
        options: arguments of ansible-playbook that say how to reach the hosts.
    """

    inventories: tuple[Path, ...]
    hosts: tuple[str, ...]
    rank_user: str
    prefix: str
    options: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """The inventory's name of the head."""
        return self.hosts[0]

    @property
    def runs(self) -> str:
        """The folder of all runs, the same on every host."""
        return f"{self.prefix}/runs"

    @property
    def limit(self) -> tuple[str, str]:
        """The option that keeps a playbook to these hosts."""
        return ("--limit", ",".join(self.hosts))

    def variables(self, run: str = "") -> dict[str, Any]:
        """What every playbook of runs needs to know.

        Args:
            run: the run's id; left out where it is about all of them.
        """
        return {
            "train_head": self.head,
            "train_rank_user": self.rank_user,
            "train_stack": f"{self.prefix}/current",
            "train_runs": self.runs,
            "train_run": run,
            "train_run_dir": f"{self.runs}/{run}",
            "train_events": str(record_dir(run) / "events.jsonl"),
        }


def record_dir(run: str) -> Path:
    """The control node's folder of a run: run.json and its copy of events.jsonl."""
    return state_dir() / "runs" / run


def recorded_recipe(run: str) -> Recipe:
    """The recipe of a training of this control node, with folders as they are on the hosts.

    Raises:
        FtclusterError: there is no record of it, or it is a script's.
    """
    path = record_dir(run) / "run.json"
    try:
        return recipe_of(json.loads(path.read_text(encoding="utf-8"))["recipe"])
    except (OSError, ValueError, KeyError, TypeError):
        raise FtclusterError(
            f"there is no record of a training '{run}' here", "list the runs: ftcluster ps"
        ) from None


def place_of(cluster: Cluster) -> Place:
    """Where a cluster's runs are."""
    head = cluster.facts.head
    hosts = tuple(host.name for host in cluster.facts.hosts)
    return Place(cluster.inventories, hosts, head.rank_user, head.prefix, cluster.options)


def recorded_place(run: str) -> Place | None:
    """Where a run of this control node is; None where there is no record of it.

    Raises:
        FtclusterError: the record is damaged.
    """
    path = record_dir(run) / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        plan = record["plan"]
        return Place(
            inventories=tuple(map(Path, record["inventories"])),
            hosts=tuple(host["name"] for host in plan["hosts"]),
            rank_user=plan["rank_user"],
            prefix=plan["prefix"],
            options=tuple(record.get("options", ())),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise FtclusterError(f"{path} cannot be read: {error!r}") from error
