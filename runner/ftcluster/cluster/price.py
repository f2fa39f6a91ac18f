"""Compute the price and cost of hosts. Pure functions only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

VARIABLE = "ftcluster_price_per_hour"  # variable of the inventory
HOUR = 3600.0  # seconds


@dataclass(frozen=True)
class Price:
    """The total price of a group of hosts.

    Attributes:
        per_hour: price per hour, in units of `currency`.
        currency: name of the currency from the inventory; "" if the inventory names none.
    """

    per_hour: float
    currency: str = ""

    def cost(self, seconds: float) -> float:
        """Return the cost of `seconds` seconds."""
        return self.per_hour * seconds / HOUR

    def shown(self, amount: float) -> str:
        """Return an amount of money with two decimals, or more if it is small.

        >>> Price(4.08, "USD").shown(4.081), Price(4.08).shown(0.00123)
        ('4.08 USD', '0.0012')
        """
        number = f"{amount:.2f}" if amount >= 0.1 or not amount else f"{amount:.2g}"
        return f"{number} {self.currency}".rstrip()


def read_price(text: str) -> Price:
    """Read the price of a host from the inventory: a number, optionally followed by a currency.

    Raises:
        ValueError: the string is not a price.

    >>> read_price("4.08 USD")
    Price(per_hour=4.08, currency='USD')
    """
    number, _, currency = text.partition(" ")
    per_hour = float(number)
    if not 0 <= per_hour < float("inf"):
        raise ValueError(f"{number} is not a price")
    return Price(per_hour, currency.strip())


def price_of(hosts: Sequence[tuple[str, str]]) -> tuple[Price | None, str]:
    """Return the total price of hosts; or None, and the reason why it cannot be computed.

    If no host has a price, the reason is "".

    Args:
        hosts: name and price of each host; a price is "" if the inventory sets none.
    """
    given = {name: text for name, text in hosts if text}
    if not given:
        return None, ""
    missing = [name for name, _ in hosts if name not in given]
    if missing:
        return None, f"{', '.join(missing)}: {VARIABLE} is not set"
    try:
        prices = [read_price(text) for text in given.values()]
    except ValueError as error:
        return None, f"{VARIABLE}: {error}"
    currencies = sorted({price.currency for price in prices})
    if len(currencies) > 1:
        names = " and ".join(map(repr, currencies))
        return None, f"the hosts' prices are in different currencies: {names}"
    return Price(sum(price.per_hour for price in prices), currencies[0]), ""


def price_document(price: Price | None) -> dict[str, Any] | None:
    """Return a price for `--json`."""
    return {"per_hour": price.per_hour, "currency": price.currency} if price else None


def epoch_document(seconds: float | None, price: Price | None) -> dict[str, Any]:
    """Return the time and the cost of an epoch for `--json`. Unknown values are None."""
    return {
        "seconds": None if seconds is None else round(seconds, 3),
        "cost": round(price.cost(seconds), 6) if price and seconds is not None else None,
    }
