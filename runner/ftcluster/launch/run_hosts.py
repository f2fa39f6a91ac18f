"""The hosts of a cluster's runs, and the control node's access to these hosts."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ftcluster.ansible.inventory import BUNDLED_LOCALHOST, pattern_of
from ftcluster.ansible.playbook import REFUSE, PlaybookOutcome, TaskEvent, run_playbook
from ftcluster.ansible.playbooks import Playbook, RunFolder
from ftcluster.ansible.settings import for_hosts
from ftcluster.cluster.saved import Cluster

UNREACHABLE = "check that the power is on and that ssh connects: ftcluster check"  # a hint


ASKS_PASSWORD = re.compile(r"sudo.*password|password.*sudo", re.IGNORECASE | re.DOTALL)


def sudo_hint(messages: Iterable[str]) -> str:
    """Return a hint if messages of a host show that sudo needs a password; "" otherwise.

    >>> sudo_hint(["Task failed: Missing sudo password"])
    'sudo asks for a password there: pass -K'
    >>> sudo_hint(["Incorrect sudo password"])
    ''
    """
    asks = any(ASKS_PASSWORD.search(message) and "ncorrect" not in message for message in messages)
    return "sudo asks for a password there: pass -K" if asks else ""


def failure_hint(failures: Iterable[TaskEvent]) -> str:
    """Return a hint for failed tasks; "" if the playbook's message already contains a hint."""
    failures = tuple(failures)
    if hint := sudo_hint(event.message for event in failures):
        return hint
    ours = all(event.action == REFUSE for event in failures)
    return "" if ours else "to see what is wrong on the hosts: ftcluster check"


def off_hint(hosts: Sequence[str], head: str) -> str:
    """Return a hint about hosts that do not respond. No run is possible without the head.

    >>> off_hint(["node2"], "node0").partition("; ")[2]
    'to continue without it: ftcluster hosts drain node2'
    """
    if not hosts or head in hosts:
        return UNREACHABLE if hosts else ""
    without = f"without {'it' if len(hosts) == 1 else 'them'}"
    return f"{UNREACHABLE}; to continue {without}: ftcluster hosts drain {' '.join(hosts)}"


@dataclass(frozen=True)
class RunHosts:
    """The hosts of a cluster's runs.

    Attributes:
        inventories: paths of inventories, in any format that Ansible supports.
        hosts: names of the hosts in the inventory, the head first.
        rank_user: the account that ranks run as; "" for the login user.
        prefix: path of the cluster's folder on the head.
        options: arguments of ansible-playbook for reaching the hosts.
    """

    inventories: tuple[Path, ...]
    hosts: tuple[str, ...]
    rank_user: str
    prefix: str
    options: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """The head's name in the inventory."""
        return self.hosts[0]

    def headed_by(self, name: str) -> "RunHosts":
        """Return the same hosts with another head; unchanged if the name is none of them."""
        if name not in self.hosts:
            return self
        return replace(self, hosts=(name, *(host for host in self.hosts if host != name)))

    @property
    def is_here(self) -> bool:
        """True if the head is this machine, and this user owns the runs."""
        return self.inventories == (BUNDLED_LOCALHOST,) and not self.rank_user

    def is_here_as(self, known: Mapping[str, str]) -> bool:
        """Return True if the head is this machine, and its stack and record equal `known`.

        Otherwise, a playbook compares them on the head (playbooks/tasks/same-cluster.yml).

        Args:
            known: the stack and the record's digest, from `Cluster.known`.
        """
        if not self.is_here:
            return False
        link, file = Path(self.prefix) / "current", Path(self.prefix) / "cluster.json"
        try:
            stack = link.readlink().name.rpartition("-")[0]
            text = file.read_bytes().strip() if file.exists() else None
        except OSError:
            return False
        record = known["record"] if text is None else hashlib.sha256(text).hexdigest()
        return (stack, record) == (known["stack"], known["record"])

    @property
    def runs(self) -> str:
        """The path of the folder of all runs. It is the same on every host."""
        return f"{self.prefix}/runs"

    @property
    def limit(self) -> tuple[str, str]:
        """The option that limits a playbook to these hosts."""
        return ("--limit", pattern_of(self.hosts))

    def at(self, run: str = "") -> RunFolder:
        """Return the variables that all playbooks about runs need.

        Args:
            run: the run's id; "" if the playbook is about all runs.
        """
        return RunFolder(
            self.head,
            self.rank_user,
            f"{self.prefix}/current",
            self.runs,
            run,
            f"{self.runs}/{run}",
        )


def play_on(
    run_hosts: RunHosts,
    playbook: Playbook,
    on_event: Callable[[TaskEvent], None],
    *,
    on_tick: Callable[[], None] = lambda: None,
    cancelled: Callable[[], bool] = lambda: False,
    time_limit_seconds: float,
) -> PlaybookOutcome:
    """Run a playbook about runs on their hosts. See `run_playbook` for the other arguments."""
    return run_playbook(
        playbook.qualified,
        run_hosts.inventories,
        playbook.variables(),
        on_event,
        options=(*run_hosts.limit, *run_hosts.options),
        on_tick=on_tick,
        cancelled=cancelled,
        time_limit_seconds=time_limit_seconds,
        settings=for_hosts(len(run_hosts.hosts)),
    )


def head_lost_hint(run: str) -> str:
    """Return a hint about a run whose head does not respond."""
    return f"continue it on the hosts that answer: ftcluster train --resume {run}"


def run_hosts_of(cluster: Cluster) -> RunHosts:
    """Return the hosts of a cluster's runs."""
    head = cluster.facts.head
    hosts = cluster.addressed([host.name for host in cluster.facts.hosts])
    return RunHosts(cluster.inventories, hosts, head.rank_user, head.prefix, cluster.options)
