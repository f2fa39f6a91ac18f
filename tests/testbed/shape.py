"""Slow cables: tc's tbf limits the rate at both ends of a cable."""

from __future__ import annotations

import re

from .settings import SWITCH, Node
from .shell import TestbedError, run

BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def parse_rate(text: str) -> float:
    """Return bits per second: `parse_rate("100mbit")` is 1e8."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.lower())
    if not found:
        raise TestbedError(f"rate {text!r}: want something like 100mbit or 1gbit, or off")
    return float(found[1]) * BITS[found[2]]


def shape(node: Node, rate: str) -> None:
    """Limit the rate of the host's cable; "off": no limit."""
    bits = None if rate == "off" else parse_rate(rate)
    for netns, dev in ((SWITCH, node.name), (node.netns, "eth0")):
        run("tc", "-n", netns, "qdisc", "del", "dev", dev, "root", check=False)
        if bits:
            burst = max(int(bits / 8 * 0.002), 16000)  # 2 ms at the full rate
            limits = ("rate", f"{bits:.0f}bit", "burst", str(burst), "latency", "50ms")
            run("tc", "-n", netns, "qdisc", "add", "dev", dev, "root", "tbf", *limits)
