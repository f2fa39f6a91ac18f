"""Computes and formats the costs of an epoch and of a run. Pure functions only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftcluster.cluster.price import VARIABLE, Price, epoch_document, price_document, price_of
from ftcluster.progress.format import duration
from ftcluster.report.epoch_time import GUESSED, EpochTime
from ftcluster.text.plural import counted
from ftcluster.text.table import aligned

UNKNOWN = "not available"


def cost_line(seconds: float, epoch: float | None, price: Price, hosts: int) -> str:
    """Format the cost of a run.

    Args:
        seconds: duration of the whole run in seconds.
        epoch: duration of an epoch in seconds, or None if unknown.
        price: price of all hosts.
        hosts: number of hosts.

    >>> cost_line(1800, 450, Price(8.0, "USD"), 2)
    'cost: 4.00 USD, 1.00 USD per epoch of 7:30 (8.00 USD an hour for 2 hosts)'
    """
    of_epoch = f", {price.shown(price.cost(epoch))} per epoch of {duration(epoch)}" if epoch else ""
    return (
        f"cost: {price.shown(price.cost(seconds))}{of_epoch} "
        f"({price.shown(price.per_hour)} an hour for {counted(hosts, 'host')})"
    )


def recorded_price(record: Mapping[str, Any]) -> Price | None:
    """Return the price of a run's hosts from its run.json, or None if the price is unknown."""
    hosts = [(host["name"], host.get("price_per_hour", "")) for host in record.get("facts", ())]
    return price_of(hosts)[0]


@dataclass(frozen=True)
class Shape:
    """A training run planned for some hosts, with its duration and its price.

    Attributes:
        name: file that the hosts' facts were read from; "" for the cluster.
        hosts: descriptions of the hosts, such as "2 x Xeon 8488C, 64 cores".
        no_price: reason why there is no price; "" if no host has a price.
    """

    name: str
    hosts: tuple[str, ...]
    ranks: int
    batch: int
    precision: str
    time: EpochTime
    price: Price | None
    no_price: str = ""

    @property
    def cost(self) -> float | None:
        """The cost of an epoch, or None if the cost is unknown."""
        if not self.price or self.time.seconds is None:
            return None
        return self.price.cost(self.time.seconds)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the shape for `--json`."""
        return {
            "facts": self.name,
            "hosts": list(self.hosts),
            "world_size": self.ranks,
            "batch_size": self.batch,
            "precision": self.precision,
            **self.epoch(),
        }

    def epoch(self) -> dict[str, Any]:
        """Return the duration and price of an epoch for `--json`."""
        time = self.time
        origin = {"source": time.source, "why": time.why, "run": time.run}
        return {
            "price": price_document(self.price),
            "epoch": {**epoch_document(time.seconds, self.price), **origin},
        }

    def shown_time(self) -> str:
        """Format the duration of an epoch."""
        return UNKNOWN if self.time.seconds is None else duration(self.time.seconds)

    def shown_cost(self) -> str:
        """Format the cost of an epoch."""
        return self.price.shown(self.cost) if self.price and self.cost is not None else UNKNOWN

    def reasons(self) -> Iterator[tuple[str, str, str]]:
        """Yield the lines that follow a plan, each as (subject, value, reason)."""
        source = f"{self.time.source}, " if self.time.source else ""
        yield "time of an epoch", self.shown_time(), f"{source}{self.time.why}"
        if self.price:
            hour = f"{self.price.shown(self.price.per_hour)} an hour for all hosts"
            yield "cost of an epoch", self.shown_cost(), hour
        elif self.no_price:
            yield "cost of an epoch", UNKNOWN, self.no_price


def comparison(shapes: Sequence[Shape]) -> Iterator[str]:
    """Yield a table that compares shapes, and a line with the fastest and the cheapest shape."""
    head = ("", "hosts", "ranks", "batch", "an epoch", "costs", "by")
    rows = [
        (
            f"{number}", "; ".join(shape.hosts), str(shape.ranks), str(shape.batch),
            shape.shown_time(), shape.shown_cost(), shape.time.source or "-",
        )
        for number, shape in enumerate(shapes, start=1)
    ]  # fmt: skip
    yield from aligned([head, *rows])
    yield ""
    for number, shape in enumerate(shapes, start=1):
        yield f"{number}: {shape.name}, {shape.precision}"
        yield f"   {shape.time.why}"
        if not shape.price:
            yield f"   no cost: {shape.no_price or f'{VARIABLE} is not set for any host'}"
    best: Mapping[str, Any] = {
        "fastest": lambda shape: shape.time.seconds,
        "cheapest": lambda shape: shape.cost,
    }
    currencies = {shape.price.currency for shape in shapes if shape.price}
    for word, value in best.items():
        if word == "cheapest" and len(currencies) > 1:
            names = " and ".join(sorted(currencies))
            yield f"costs are not compared, because the prices are in different currencies: {names}"
            continue
        numbers = [
            n for n, shape in enumerate(shapes)
            if value(shape) is not None and shape.time.source != GUESSED
        ]  # fmt: skip
        if len(numbers) > 1:
            yield f"{word}: {1 + min(numbers, key=lambda n: value(shapes[n]))}"
