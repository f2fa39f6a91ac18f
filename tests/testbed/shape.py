"""Slow cables: a rate limit by the kernel, and a delay by a program of ours.

The rate limit is tc's tbf at both ends of the cable. The delay is `relay.py`, plugged in between
the cable and the switch, because not every kernel has netem.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

from . import network
from .cgroups import Group
from .settings import BRIDGE, SWITCH, Node
from .shell import TestbedError, run, start

BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_rate(text: str) -> float:
    """Bits a second: `parse_rate("100mbit")` is 1e8."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.lower())
    if not found:
        raise TestbedError(f"rate {text!r}: want something like 100mbit or 1gbit, or off")
    return float(found[1]) * BITS[found[2]]


def parse_delay(text: str) -> float:
    """Seconds: `parse_delay("5ms")` is 0.005."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text.lower())
    if not found:
        raise TestbedError(f"delay {text!r}: want something like 5ms")
    return float(found[1]) * SECONDS[found[2]]


def shape(node: Node, rate: str, delay: str | None) -> None:
    """Give the host's cable a rate ("off": none) and a delay each way (None: none)."""
    bits = None if rate == "off" else parse_rate(rate)
    seconds = None if delay is None else parse_delay(delay)
    was_cut = network.is_cut_off(node)
    for netns, dev in ((SWITCH, node.name), (node.netns, "eth0")):
        run("tc", "-n", netns, "qdisc", "del", "dev", dev, "root", check=False)
        if bits:
            burst = max(int(bits / 8 * 0.002), 16000)  # 2 ms of line rate
            limits = ("rate", f"{bits:.0f}bit", "burst", str(burst), "latency", "50ms")
            run("tc", "-n", netns, "qdisc", "add", "dev", dev, "root", "tbf", *limits)
    _remove_delay_line(node)
    if seconds:
        _add_delay_line(node, seconds)
    if was_cut:
        network.cut_off(node)


def _remove_delay_line(node: Node) -> None:
    Group(f"{node.name}-relay").kill()
    network.ip("link", "del", node.delay_port, check=False)
    network.ip("link", "set", node.name, "master", BRIDGE, "arp", "on")


def _add_delay_line(node: Node, seconds: float) -> None:
    ip = network.ip
    ip("tuntap", "add", node.delay_port, "mode", "tap", "vnet_hdr")
    ip("link", "set", node.name, "nomaster", "arp", "off")
    ip("link", "set", node.delay_port, "master", BRIDGE, "up")
    ip("link", "set", node.name, "up")
    program = Path(__file__).with_name("relay.py")
    relay = [sys.executable, str(program), node.name, node.delay_port, str(seconds)]
    log = node.folder / "relay.log"
    group = Group(f"{node.name}-relay")
    group.make()
    start(group.join_argv(network.inside(SWITCH, "setsid", "--fork", *relay)), log)
    deadline = time.monotonic() + 5
    while "LOWER_UP" not in ip("-o", "link", "show", node.delay_port).stdout:
        if time.monotonic() > deadline:
            raise TestbedError(f"{node.name}: no delay line: see {log}")
        time.sleep(0.05)


def rate_of(node: Node) -> str:
    shown = run("tc", "-n", SWITCH, "-j", "qdisc", "show", "dev", node.name, check=False).stdout
    queue = json.loads(shown or "[]")
    if not queue or queue[0].get("kind") != "tbf":
        return "-"
    return f"{queue[0]['options']['rate'] * 8 / 1e6:g}mbit"


def delay_of(node: Node) -> str:
    pids = Group(f"{node.name}-relay").pids()
    if not pids:
        return "-"
    words = Path(f"/proc/{pids[0]}/cmdline").read_text().rstrip("\0").split("\0")
    return f"{float(words[-1]) * 1e3:g}ms"
