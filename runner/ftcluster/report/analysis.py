"""Analyzes step times: the parts of a step, the slowest host, and the gain from one more host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ftcluster_common.protocol.rank_times import Interval, straggler_scores

OPERATIONS = 6  # operations per weight and token: 2 in the forward pass, 4 in the backward pass


@dataclass(frozen=True)
class StepParts:
    """The parts of a mean step in milliseconds, as means over the ranks.

    Attributes:
        matmuls: time of the model's matmuls at the measured matmul rate; 0 if unknown.
        other: remaining time of forward pass, backward pass and optimizer.
        communication, input, waiting: see `history.RankTimes`.
        limit_share: fraction of the matmul peak that the training reached; None if unknown.
    """

    matmuls: float
    other: float
    communication: float
    input: float
    waiting: float
    limit_share: float | None

    @property
    def seconds(self) -> float:
        """The duration of a step in seconds."""
        parts = (self.matmuls, self.other, self.communication, self.input, self.waiting)
        return sum(parts) / 1e3

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of the step that each part takes, by name."""
        whole = self.seconds * 1e3 or 1.0
        return {
            "compute": (self.matmuls + self.other) / whole,
            "communication": self.communication / whole,
            "input": self.input / whole,
            "waiting": self.waiting / whole,
        }


def step_parts(whole: Interval, products: Mapping[str, Any]) -> StepParts:
    """Divide a mean step into its parts.

    The matmul peak is the speed that training would have if a step consisted only of the model's
    matmuls. These need 6 operations per weight and token, excluding padding.

    Args:
        whole: sum of all intervals of the training, see `history.totals`.
        products: the event `products` with the matmul measurements, or an empty mapping.
    """
    ms = 1e3 / whole.steps
    ranks = whole.ranks
    compute = ms * fmean(rank.compute for rank in ranks)
    rates = products.get("gflops", ())
    least, share = 0.0, None
    if len(rates) == len(ranks) and min(rates) > 0 and whole.seconds > 0:
        operations = OPERATIONS * products["weights"] * whole.tokens
        share = operations / whole.seconds / (sum(rates) * 1e9)
        # each rank computes an equal part of the operations
        least = min(compute, ms * fmean(operations / len(ranks) / (1e9 * rate) for rate in rates))
    return StepParts(
        least,
        compute - least,
        ms * fmean(rank.communication for rank in ranks),
        ms * fmean(rank.input for rank in ranks),
        ms * fmean(rank.waiting for rank in ranks),
        share,
    )


@dataclass(frozen=True)
class HostCost:
    """The time per step that a host works, compared with other hosts.

    Attributes:
        host: name of the host.
        ranks: ranks on the host.
        work: seconds per step that the host's slowest rank computes and reads data.
        relative: ratio of `work` to the median of all ranks.
        saved: maximum fraction of a step that would be saved if the slowest host were as fast as
            the second slowest host; 0 for all other hosts.
    """

    host: str
    ranks: tuple[int, ...]
    work: float
    relative: float
    saved: float


def host_costs(whole: Interval, names: Sequence[str]) -> list[HostCost]:
    """Return the cost of each host, the slowest host first.

    Args:
        whole: sum of all intervals of the training.
        names: name of each rank's host.
    """
    of: dict[str, list[int]] = {}
    for rank, name in enumerate(names[: len(whole.ranks)]):
        of.setdefault(name, []).append(rank)
    work = [rank.work / whole.steps for rank in whole.ranks]
    slowest = {name: max(work[rank] for rank in ranks) for name, ranks in of.items()}
    scores = straggler_scores(whole.ranks)
    order = sorted(of, key=lambda name: -slowest[name])
    step = whole.seconds / whole.steps
    return [
        HostCost(
            name,
            tuple(of[name]),
            slowest[name],
            max(scores[rank] for rank in of[name]),
            (slowest[name] - slowest[order[1]]) / step if place == 0 and len(order) > 1 else 0.0,
        )
        for place, name in enumerate(order)
    ]


@dataclass(frozen=True)
class NextHost:
    """A prediction of the speed with one more host of the same kind.

    Attributes:
        hosts: number of hosts including the new one.
        same_batch: samples per second with the same total batch, split over more ranks.
        same_share: samples per second with the same number of samples per rank.
        network_known: True if the measurement includes communication between hosts.
    """

    hosts: int
    same_batch: float
    same_share: float
    network_known: bool


def next_host(whole: Interval, speed: float, hosts: int) -> NextHost:
    """Predict the speed with one more host from the parts of a step.

    With the same total batch, each rank has less work if ranks are added. With the same number of
    samples per rank, the work of a rank does not change. Communication is modelled as a ring, in
    which a rank sends 2 (n - 1) / n of the gradients (Thakur, Rabenseifner and Gropp 2005).

    The prediction is an upper bound. It assumes that communication hidden behind the backward pass
    stays hidden, and that waiting stays proportional to work.

    Args:
        speed: current speed in samples per second.
        hosts: current number of hosts.
    """
    ranks = len(whole.ranks)
    later = ranks * (hosts + 1) // hosts
    moved = max(rank.communication for rank in whole.ranks) / whole.steps
    if ranks > 1:
        moved *= (later - 1) / later / ((ranks - 1) / ranks)
    step = whole.seconds / whole.steps
    work = step - max(rank.communication for rank in whole.ranks) / whole.steps
    fewer = hosts / (hosts + 1)
    return NextHost(
        hosts + 1,
        speed * step / (work * fewer + moved),
        speed / fewer * step / (work + moved),
        hosts > 1,
    )


def rank_hosts(placed: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> list[str]:
    """Return the name in the inventory of each rank's host.

    Args:
        placed: ranks in the event `placement`; their hosts are hostnames.
        record: record of the run. If two hosts have the same hostname, the order of the plan in
            the record identifies the hosts.
    """
    named = {host["hostname"]: host["name"] for host in record.get("facts", ())}
    if len(named) == len(record.get("facts", ())):
        return [named.get(rank["host"], rank["host"]) for rank in placed]
    planned = [host["name"] for host in record["plan"]["hosts"] for _ in host["placement"]]
    return planned if len(planned) == len(placed) else [rank["host"] for rank in placed]
