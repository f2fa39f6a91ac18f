"""The network: a switch with a cable to every host, and the faults that cables have.

The switch (a bridge) and the control host's address are in a separate network namespace;
every host lives in another, and a veth pair is the cable between the two. Nothing that is sent
to the cluster can leave through this machine's real interface.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from .settings import BRIDGE, SWITCH, Node
from .shell import run, start

FORWARDING, DISABLED = "3", "0"  # states of a bridge port
TABLE = "testbed"
DELAY = Path(__file__).with_name("delay.py")

# Pairs of addresses that must not reach each other.
CUTS = f"""
table bridge {TABLE}
delete table bridge {TABLE}
table bridge {TABLE} {{
  set cut {{ type ipv4_addr . ipv4_addr; }}
  chain forward {{ type filter hook forward priority 0; ip saddr . ip daddr @cut drop; }}
}}"""


def exists(netns: str = SWITCH) -> bool:
    return Path("/run/netns", netns).exists()


def inside(netns: str, *cmd: str) -> list[str]:
    """Return `cmd` as a command that runs in a network namespace.

    `ip netns exec` is not used, because it copies the mount table, which keeps the hosts' disks
    busy.
    """
    return ["nsenter", f"--net=/run/netns/{netns}", *cmd]


def ip(*args: str, netns: str = SWITCH, check: bool = True) -> subprocess.CompletedProcess[str]:
    return run("ip", "-n", netns, *args, check=check)


def nft(script: str, netns: str = SWITCH, check: bool = True) -> None:
    run(*inside(netns, "nft", "-f", "-"), text=script, check=check)


# ---------------------------------------------------------------- the switch
def switch_on(control_address: str) -> None:
    """Create the switch and connect the control host; a second call changes nothing."""
    if not exists():
        run("ip", "netns", "add", SWITCH)
    if f"{control_address}/24" in ip("addr", "show", "dev", BRIDGE, check=False).stdout:
        return
    ip("link", "set", "lo", "up")
    mac = "02:00:00:00:00:01"
    bridge = ("link", "add", BRIDGE, "address", mac, "type", "bridge", "forward_delay", "0")
    ip(*bridge, check=False)
    # after the bridge, because a bridge table that is older than the first bridge is never hooked
    nft(CUTS)
    ip("link", "set", BRIDGE, "up")
    # last, because this address shows that everything else exists
    ip("addr", "add", f"{control_address}/24", "dev", BRIDGE)


def switch_off() -> None:
    """Remove the switch, and end remaining processes of the control host, such as ssh masters."""
    if not exists():
        return
    spared = _self_and_ancestors()
    for pid in map(int, run("ip", "netns", "pids", SWITCH).stdout.split()):
        if pid not in spared:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    run("ip", "netns", "del", SWITCH)


def _self_and_ancestors() -> set[int]:
    found, pid = set(), os.getpid()
    while pid > 1:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


# ---------------------------------------------------------------- cables
def plug_in(node: Node) -> None:
    """Connect the cable: `eth0` in the host, and a port with the host's name on the switch."""
    run("ip", "netns", "add", node.netns)
    peer = ("peer", "name", "eth0", "address", node.mac, "netns", node.netns)
    ip("link", "add", node.name, "type", "veth", *peer)
    ip("link", "set", node.name, "master", BRIDGE, "up")
    ip("link", "set", "lo", "up", netns=node.netns)
    ip("addr", "add", f"{node.address}/24", "dev", "eth0", netns=node.netns)
    ip("link", "set", "eth0", "up", netns=node.netns)
    ip("route", "add", "default", "via", node.gateway, netns=node.netns)


def link_down(node: Node) -> None:
    if exists():
        ip("link", "set", node.name, "down", check=False)


def unplug(node: Node) -> None:
    """Remove the cable: first the veth pair, because a namespace disappears only later."""
    if exists():
        for name in (node.name, f"{node.name}-f"):
            ip("link", "del", name, check=False)
    if exists(node.netns):
        run("ip", "netns", "del", node.netns)


# ---------------------------------------------------------------- partitions
def cut_off(node: Node) -> None:
    """Disconnect a host: a disabled port drops every frame, and the host's link stays up."""
    run("bridge", "-n", SWITCH, "link", "set", "dev", node.name, "state", DISABLED)


def rejoin(node: Node) -> None:
    run("bridge", "-n", SWITCH, "link", "set", "dev", node.name, "state", FORWARDING)


def cut_pair(one: Node, other: Node) -> None:
    """Disconnect two hosts from each other; both still reach all others."""
    nft(f"add element bridge {TABLE} cut {_both_ways(one, other)}")


def heal_pair(one: Node, other: Node) -> None:
    nft(f"delete element bridge {TABLE} cut {_both_ways(one, other)}", check=False)


def _both_ways(one: Node, other: Node) -> str:
    a, b = one.address, other.address
    return f"{{ {a} . {b}, {b} . {a} }}"


# ---------------------------------------------------------------- loss
def lose(node: Node, percent: int) -> None:
    """Drop this percentage of the frames between a host and the others at random; 0: none."""
    table = f"{TABLE}-loss-{node.name}"
    nft(f"delete table bridge {table}", check=False)
    if percent:
        dropped = f"numgen random mod 100 < {percent} drop"
        nft(
            f"table bridge {table} {{ chain forward {{ type filter hook forward priority 1; "
            f"iifname {node.name} {dropped}; oifname {node.name} {dropped}; }}; }}"
        )


# ---------------------------------------------------------------- delay
def delay(node: Node, milliseconds: float) -> None:
    """Delay all frames to and from a host, in each direction; 0 removes the delay.

    The host's port leaves the switch, and a process forwards the frames to another port.
    """
    far, port = f"{node.name}-f", f"{node.name}-p"
    ip("link", "del", far, check=False)  # this also ends the previous process
    ip("link", "set", node.name, "master", BRIDGE)
    if not milliseconds:
        return
    ip("link", "add", far, "type", "veth", "peer", "name", port)
    for name in (far, node.name):  # these interfaces do not have the control host's address
        quiet = f"echo 1 > /proc/sys/net/ipv4/conf/{name}/arp_ignore; "
        quiet += f"echo 1 > /proc/sys/net/ipv6/conf/{name}/disable_ipv6 2> /dev/null || :"
        run(*inside(SWITCH, "sh", "-c", quiet))
    for netns, name in ((node.netns, "eth0"), (SWITCH, port)):
        run(*inside(netns, sys.executable, str(DELAY), "plain", name))
    ip("link", "set", node.name, "nomaster")
    ip("link", "set", port, "master", BRIDGE, "up")
    ip("link", "set", far, "up")
    seconds = str(milliseconds / 1000)
    argv = inside(SWITCH, sys.executable, str(DELAY), "relay", seconds, far, node.name)
    start(["setsid", "--fork", *argv], node.folder / "delay.log")


def is_cut_off(node: Node) -> bool:
    shown = run("bridge", "-n", SWITCH, "-j", "link", "show", "dev", node.name, check=False)
    links = json.loads(shown.stdout or "[]")
    return bool(links) and links[0]["state"] != "forwarding"
