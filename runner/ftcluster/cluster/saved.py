"""Save the cluster of the last setup on the control node, and read it again.

The file contains the arguments for reaching the hosts, their facts, and a copy of the head's
record.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ftcluster.ansible.inventory import BUNDLED_LOCALHOST, LOCALHOST
from ftcluster.cluster.absent import AbsentHost, drained_hosts
from ftcluster.cluster.facts import ClusterFacts
from ftcluster.cluster.record import Drained, record_of
from ftcluster.cluster.tunings import Tuning
from ftcluster.errors import FtclusterError
from ftcluster.paths import locked_state, make_state_dir, state_dir, write_atomically
from ftcluster_common.given_files import FormatError
from ftcluster_common.protocol.formats import CLUSTER, opened, stamped

_WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


class NoCluster(FtclusterError):
    """The error if no cluster has been set up from this control node."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that was set up, as known to this control node.

    Attributes:
        inventories: the inventories that the cluster was set up from.
        facts: the facts of the cluster's hosts.
        options: arguments of ansible-playbook for reaching the hosts.
        pattern: Ansible pattern that selects the cluster's hosts in the inventories; "" for all
            hosts.
        slurm_job: id of the Slurm job whose nodes are the hosts; "" without Slurm. With Slurm, all
            hosts see the head's folders, and the inventory contains only the head.
        drained: hosts that are set up, but that new runs do not use.
        tunings: results of `tune` on the cluster, the newest last.
        record: text of the head's record when it was last read. `drained`, `tunings` and the
            all-reduce measurement come from this text.
        as_of: time when the record was last read, such as 2026-11-23 14:05 UTC; "" if it was never
            read.
        record_host: name of the cluster's head, which stores the record; "" if the first host of
            `facts` is the head.
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
    record_host: str = ""

    @property
    def usable(self) -> ClusterFacts:
        """The hosts that new runs may use, always including the head."""
        hosts = tuple(host for host in self.facts.hosts if host.name not in self.drained)
        return replace(self.facts, hosts=hosts)

    @property
    def absent(self) -> tuple[AbsentHost, ...]:
        """The hosts that new runs do not use, with the reasons."""
        return drained_hosts(self.drained)

    @property
    def known(self) -> dict[str, str]:
        """The saved stack and the record's SHA-256, which a launch compares with the head's values.

        The dictionary also contains the name of the host with the record.
        """
        digest = hashlib.sha256(self.record.encode()).hexdigest()
        return {"stack": self.facts.head.stack, "record": digest, "host": self.head}

    @property
    def head(self) -> str:
        """The name of the cluster's head, even if it is not among these hosts."""
        return self.record_host or self.facts.head.name

    @property
    def is_headed_elsewhere(self) -> bool:
        """True if the first host is not the cluster's head, which has access to all hosts."""
        return self.head != self.facts.head.name

    def addressed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return these hosts' names in the inventory; with Slurm, its only host is localhost."""
        return (LOCALHOST,) if self.slurm_job else tuple(names)

    def with_record(self, text: object) -> "Cluster":
        """Return the cluster, updated with the record that its head has just sent.

        Raises:
            FtclusterError: the record is not valid; the message names the head and the file.
        """
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        try:
            return _with_record(self, text, now)
        except ValueError as error:
            head = self.facts.head
            raise FtclusterError(
                f"{head.name}: {head.prefix}/cluster.json cannot be read: {error}",
                "install the ftcluster version that wrote the file; or remove the file on the head "
                "and run ftcluster setup, which discards measurements and undrains all hosts",
            ) from None


def _with_record(cluster: Cluster, text: object, as_of: str) -> Cluster:
    record = record_of(text)
    facts = replace(cluster.facts, all_reduce=record.measured(cluster.facts))
    others = {host.name for host in facts.hosts[1:]}  # the head is never drained
    drained = {name: reason for name, reason in record.drained.items() if name in others}
    return replace(
        cluster, facts=facts, drained=drained, tunings=record.tunings, record=str(text), as_of=as_of
    )


def remember(cluster: Cluster) -> None:
    """Save the cluster for later commands. An unreadable older file is renamed to .damaged."""
    document = {
        # save only the name of the bundled inventory, because its path depends on the installation
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
        NoCluster: no cluster has been set up.
        FtclusterError: the file of the saved cluster cannot be read.
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
            "run ftcluster setup INVENTORY: it writes a new file and renames this one to "
            f"{_kept().name}",
        ) from error


def damage() -> str:
    """Return the reason why the saved cluster cannot be read.

    Return "" if it can be read, or if no cluster is saved.
    """
    try:
        recall()
    except NoCluster:
        return ""
    except FtclusterError as error:
        return error.message
    return ""


def recall_of(inventories: Sequence[Path]) -> Cluster | None:
    """Return the saved cluster if it was set up from these inventories.

    Return None if it was set up from other inventories or cannot be read.
    """
    try:
        cluster = recall()
    except FtclusterError:
        return None
    same = cluster.inventories == tuple(path.absolute() for path in inventories)
    return cluster if same else None


def change(
    inventories: Sequence[Path], changed: Callable[[Cluster | None], Cluster | None]
) -> None:
    """Change the saved cluster under a lock, so that no other command can change it meanwhile.

    Args:
        inventories: inventories of the cluster to change.
        changed: function that returns the new cluster, or None to change nothing. Its argument is
            the saved cluster; None if no cluster with these inventories is saved.
    """
    with locked_state():
        cluster = changed(recall_of(inventories))
        if cluster:
            remember(cluster)


def learn(inventories: Sequence[Path], stack: str, record: object) -> None:
    """Update the saved cluster with its head's stack and record.

    If the last setup used other inventories, change nothing.

    Args:
        inventories: inventories of the cluster.
        stack: name of the stack that all hosts have now.
        record: text of the head's record.

    Raises:
        FtclusterError: the record is not valid.
    """

    def updated(before: Cluster | None) -> Cluster | None:
        if not before:
            return None
        hosts = tuple(replace(host, stack=stack) for host in before.facts.hosts)
        return replace(before, facts=replace(before.facts, hosts=hosts)).with_record(record)

    change(inventories, updated)


def forget(inventories: Sequence[Path]) -> None:
    """Delete the saved cluster if it was set up from these inventories."""
    with locked_state():
        if recall_of(inventories):
            _file().unlink()


def _read() -> Cluster:
    document = opened(CLUSTER, json.loads(_file().read_text(encoding="utf-8")))
    facts = ClusterFacts.from_dict(document["facts"])
    if not facts.hosts:
        raise ValueError("it contains no hosts")
    inventories = tuple(
        BUNDLED_LOCALHOST if text == LOCALHOST else Path(text)
        for text in _texts(document["inventories"])
    )
    options, pattern = _texts(document["options"]), str(document["hosts"])
    cluster = Cluster(inventories, facts, options, pattern)
    # files of older versions have no record; the next command that contacts the head adds it
    return _with_record(cluster, document.get("record", ""), str(document.get("as_of", "")))


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise ValueError(f"{values!a} is not a list of strings")
    return tuple(values)


def _file() -> Path:
    return state_dir() / "cluster.json"


def _kept() -> Path:
    return state_dir() / "cluster.json.damaged"
