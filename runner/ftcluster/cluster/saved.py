"""The cluster of the last setup, saved on the control node.

It has what later commands need to reach the hosts, and a copy of the head's record.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import BUNDLED_LOCALHOST, LOCALHOST
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.record import Drained, record_of
from ftcluster.cluster.tunings import Tuning
from ftcluster.errors import FtclusterError
from ftcluster.paths import locked_state, make_state_dir, state_dir, write_atomically
from ftcluster_common.given_files import FormatError
from ftcluster_common.protocol.formats import CLUSTER, opened, stamped

_WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


class NoCluster(FtclusterError):
    """No cluster has been set up from this control node."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that was set up, as far as this control node knows it.

    Attributes:
        inventories: the inventories that it was made from.
        options: arguments of ansible-playbook for reaching the hosts.
        pattern: pattern of the inventories' hosts that belong to it, or "" for all.
        slurm_job: the Slurm job that has the hosts, or ""; all of them see the head's folders, and
            the inventory has only the head.
        drained: hosts that are set up, but that new runs skip.
        tunings: results of `tune` on the cluster, the newest last.
        record: the text of the head's record, the source of these three, as it was last read.
        as_of: time of that reading, such as 2026-11-23 14:05 UTC; "" if no head was asked.
    """

    inventories: tuple[Path, ...]
    facts: ClusterFacts
    options: tuple[str, ...] = ()
    pattern: str = ""
    slurm_job: str = ""
    drained: Mapping[str, Drained] = field(default_factory=dict)
    tunings: tuple[Tuning, ...] = ()
    record: str = ""
    as_of: str = ""

    @property
    def usable(self) -> ClusterFacts:
        """The hosts that new runs may use; the head is always among them."""
        hosts = tuple(host for host in self.facts.hosts if host.name not in self.drained)
        return replace(self.facts, hosts=hosts)

    @property
    def known(self) -> dict[str, str]:
        """The stack and the record's SHA-256, which a launch compares with the head's."""
        digest = hashlib.sha256(self.record.encode()).hexdigest()
        return {"stack": self.facts.head.stack, "record": digest}

    def addressed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the inventory's hosts through which these hosts of the cluster are reached."""
        return (LOCALHOST,) if self.slurm_job else tuple(names)

    def with_record(self, text: object) -> "Cluster":
        """Return the cluster with a record that its head has just sent.

        Raises:
            FtclusterError: the record is not valid; names the head and the file.
        """
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        try:
            return _with_record(self, text, now)
        except ValueError as error:
            head = self.facts.head
            raise FtclusterError(
                f"{head.name}: {head.prefix}/cluster.json cannot be read: {error}",
                "install the ftcluster that wrote it; or remove it there, with the drained hosts "
                "and measurements in it, and run ftcluster setup",
            ) from None


def _with_record(cluster: Cluster, text: object, as_of: str) -> Cluster:
    record = record_of(text)
    facts = replace(cluster.facts, all_reduce=record.measured(cluster.facts))
    others = {host.name for host in facts.hosts[1:]}  # without the head nothing can run
    drained = {name: reason for name, reason in record.drained.items() if name in others}
    return replace(
        cluster, facts=facts, drained=drained, tunings=record.tunings, record=str(text), as_of=as_of
    )


def remember(cluster: Cluster) -> None:
    """Save the cluster for later commands; an unreadable older file is kept as .damaged."""
    document = {
        # the bundled inventory by its name: its path differs between installations
        "inventories": [
            LOCALHOST if p == BUNDLED_LOCALHOST else str(p) for p in cluster.inventories
        ],
        "hosts": cluster.pattern,
        "options": cluster.options,
        "facts": cluster.facts.to_dict(),
        "record": cluster.record,
        "as_of": cluster.as_of,
    }
    document = stamped(CLUSTER, document)
    make_state_dir(state_dir())
    if damage():
        _file().replace(_kept())
    write_atomically(_file(), json.dumps(document, indent=1) + "\n")


def recall() -> Cluster:
    """Return the cluster of the last setup.

    Raises:
        NoCluster: there is none.
        FtclusterError: its file cannot be read.
    """
    try:
        return _read()
    except FileNotFoundError:
        raise NoCluster(
            "no cluster has been set up from here",
            "set one up: ftcluster setup inventory.ini; or this machine: ftcluster setup localhost",
        ) from None
    except FormatError as error:
        raise FtclusterError(f"{_file()} {error}") from error
    except _WRONG as error:
        raise FtclusterError(
            f"{_file()} cannot be read: {error!r:.100}",
            "name the cluster, which writes a new one and keeps this one as "
            f"{_kept().name}: ftcluster setup INVENTORY",
        ) from error


def damage() -> str:
    """Return why the saved cluster cannot be read; "" if it can, or if there is none."""
    try:
        recall()
    except NoCluster:
        return ""
    except FtclusterError as error:
        return error.message
    return ""


def recall_of(inventories: Sequence[Path]) -> Cluster | None:
    """Return the cluster of the last setup, if it is readable and has these inventories."""
    try:
        cluster = recall()
    except FtclusterError:
        return None
    same = cluster.inventories == tuple(path.absolute() for path in inventories)
    return cluster if same else None


def change(
    inventories: Sequence[Path], changed: Callable[[Cluster | None], Cluster | None]
) -> None:
    """Save the result of a function of the saved cluster; None changes nothing.

    No other command can change the cluster meanwhile.

    Args:
        changed: function of the cluster of the last setup; gets None for other inventories.
    """
    with locked_state():
        cluster = changed(recall_of(inventories))
        if cluster:
            remember(cluster)


def learn(inventories: Sequence[Path], stack: str, record: object) -> None:
    """Save what a cluster's head has sent, if it is the cluster of the last setup.

    Args:
        stack: name of the stack that all its hosts have now.
        record: text of the head's record.

    Raises:
        FtclusterError: the record is not valid.
    """

    def learned(before: Cluster | None) -> Cluster | None:
        if not before:
            return None
        hosts = tuple(replace(host, stack=stack) for host in before.facts.hosts)
        return replace(before, facts=replace(before.facts, hosts=hosts)).with_record(record)

    change(inventories, learned)


def forget(inventories: Sequence[Path]) -> None:
    """Delete the saved cluster, if it was made from these inventories."""
    with locked_state():
        if recall_of(inventories):
            _file().unlink()


def _read() -> Cluster:
    document = opened(CLUSTER, json.loads(_file().read_text(encoding="utf-8")))
    facts = ClusterFacts.from_dict(document["facts"])
    if not facts.hosts:
        raise ValueError("it has no hosts")
    inventories = tuple(
        BUNDLED_LOCALHOST if text == LOCALHOST else Path(text)
        for text in _texts(document["inventories"])
    )
    options, pattern = _texts(document["options"]), str(document["hosts"])
    cluster = Cluster(inventories, facts, options, pattern)
    # files from before the record existed have none: the next command that asks the head adds it
    return _with_record(cluster, document.get("record", ""), str(document.get("as_of", "")))


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise ValueError(f"{values!a} is not a list of texts")
    return tuple(values)


def _file() -> Path:
    return state_dir() / "cluster.json"


def _kept() -> Path:
    return state_dir() / "cluster.json.damaged"
