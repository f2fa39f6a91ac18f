"""Where a step's time went, which host costs most, and one more host. Pure functions only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ftcluster_common.protocol.rank_times import Interval, straggler_scores

OPERATIONS = 6  # a weight and token: 2 forward, 4 backward


@dataclass(frozen=True)
class StepParts:
    """Milliseconds of a mean step, means over the ranks.

    Attributes:
        products: what the model's matrix products would take at their own speed; 0 if unknown.
        other: the rest of forward, backward and optimizer.
        communication, input, waiting: see `history.RankTimes`.
        limit_share: the share of the matmul peak that the training reached; None if unknown.
    """

    products: float
    other: float
    communication: float
    input: float
    waiting: float
    limit_share: float | None

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        parts = (self.products, self.other, self.communication, self.input, self.waiting)
        return sum(parts) / 1e3

    @property
    def shares(self) -> dict[str, float]:
        """The parts of a step by name, as parts of 1."""
        whole = self.seconds * 1e3 or 1.0
        return {
            "compute": (self.products + self.other) / whole,
            "communication": self.communication / whole,
            "input": self.input / whole,
            "waiting": self.waiting / whole,
        }


def step_parts(whole: Interval, products: Mapping[str, Any]) -> StepParts:
    """Divide a mean step into its parts.

    The matmul peak is the speed of the model's matmuls alone, with 6 operations a
    weight and token without padding.

    Args:
        whole: all that is known of the training, see `history.totals`.
        products: the event `products`, or nothing.
    """
    ms = 1e3 / whole.steps
    ranks = whole.ranks
    compute = ms * fmean(rank.compute for rank in ranks)
    rates = products.get("gflops", ())
    least, share = 0.0, None
    if len(rates) == len(ranks) and min(rates) > 0 and whole.seconds > 0:
        operations = OPERATIONS * products["weights"] * whole.tokens
        share = operations / whole.seconds / (sum(rates) * 1e9)
        # each rank has its part of the operations
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
    """The time that a host's ranks work in a step, beside that of others.

    Attributes:
        host: its name.
        ranks: their numbers.
        work: seconds of a step in which its slowest rank computes and reads.
        relative: to the median of all ranks.
        saved: the part of a step that would be saved if it were as fast as the slowest of the other
            hosts, at most; 0 for all but the slowest.
    """

    host: str
    ranks: tuple[int, ...]
    work: float
    relative: float
    saved: float


def host_costs(whole: Interval, names: Sequence[str]) -> list[HostCost]:
    """Each host's, the most expensive first.

    Args:
        names: the host of each rank.
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
    """A prediction of the speed with one more host like the others.

    Attributes:
        hosts: with it.
        same_batch: samples per second with the same batch, split over more ranks.
        same_share: samples per second with as many samples a rank as now.
        network_known: whether communication between hosts is in it.
    """

    hosts: int
    same_batch: float
    same_share: float
    network_known: bool


def next_host(whole: Interval, speed: float, hosts: int) -> NextHost:
    """Predict one more host from the parts of a step.

    Work that a rank does is split over more ranks with the same batch, and stays with the same
    share. Communication is that of a ring: a rank sends 2 (n - 1) / n of the gradients (Thakur,
    Rabenseifner and Gropp 2005). What communication now hides behind the backward pass stays
    hidden, and waiting stays in proportion to work: so this is an upper bound.

    Args:
        speed: samples per second now.
        hosts: now.
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
    """The inventory's name of each rank's host.

    Args:
        placed: the ranks of the event `placement`, with hostnames.
        record: the run's; hosts may have the same hostname, and then the plan's order counts.
    """
    named = {host["hostname"]: host["name"] for host in record.get("facts", ())}
    if len(named) == len(record.get("facts", ())):
        return [named.get(rank["host"], rank["host"]) for rank in placed]
    planned = [host["name"] for host in record["plan"]["hosts"] for _ in host["placement"]]
    return planned if len(planned) == len(placed) else [rank["host"] for rank in placed]
