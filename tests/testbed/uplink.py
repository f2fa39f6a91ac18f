"""The way from the hosts to the package registries, and to nothing else.

This machine forwards DNS and the web ports with masquerading. No connection can come in.
"""

from __future__ import annotations

from . import registries, sysctl
from .network import inside, ip, nft
from .settings import NAME, SWITCH
from .shell import run

OUTSIDE, INSIDE = f"{SWITCH}-up", "up0"  # the two ends of the veth pair
FIRST = 4 * (ord(NAME) - ord("a") + 1) if NAME else 0  # the first of this testbed's four addresses
OUTSIDE_ADDRESS, INSIDE_ADDRESS = f"198.18.255.{FIRST + 1}", f"198.18.255.{FIRST + 2}"
TABLE = f"ftcluster_testbed{NAME}"
FORWARD = "net/ipv4/ip_forward"

SWITCH_RULES = f"""
table ip {TABLE}
delete table ip {TABLE}
table ip {TABLE} {{
  chain leave {{
    type nat hook postrouting priority 100;
    oifname {INSIDE} masquerade
  }}
}}"""


def machine_rules(resolvers: list[str]) -> str:
    """Return this machine's nftables rules: DNS, ports 80 and 443, and their responses."""
    names = (
        f"iifname {OUTSIDE} ip daddr {{ {', '.join(resolvers)} }} "
        "meta l4proto { tcp, udp } th dport 53 accept"
    )
    return f"""
table ip {TABLE}
delete table ip {TABLE}
table ip {TABLE} {{
  chain leave {{
    type nat hook postrouting priority 100;
    ip saddr {INSIDE_ADDRESS} oifname != {OUTSIDE} masquerade
  }}
  chain input {{
    type filter hook input priority 0;
    iifname {OUTSIDE} drop
  }}
  chain forward {{
    type filter hook forward priority 0;
    oifname {OUTSIDE} ct state established,related accept
    oifname {OUTSIDE} drop
    {names if resolvers else ""}
    iifname {OUTSIDE} tcp dport {{ 80, 443 }} accept
    iifname {OUTSIDE} reject
  }}
}}"""


def connect() -> None:
    """Create the uplink if it does not exist."""
    if ip("route", "show", "default").stdout:
        return
    sysctl.put(FORWARD, 1)
    run("nft", "-f", "-", text=machine_rules(registries.resolvers()))
    run(*inside(SWITCH, "sh", "-c", f"echo 1 > /proc/sys/{FORWARD}"))
    nft(SWITCH_RULES)
    run("ip", "link", "del", OUTSIDE, check=False)
    run("ip", "link", "add", OUTSIDE, "type", "veth", "peer", "name", INSIDE, "netns", SWITCH)
    run("ip", "addr", "add", f"{OUTSIDE_ADDRESS}/30", "dev", OUTSIDE)
    run("ip", "link", "set", OUTSIDE, "up")
    ip("addr", "add", f"{INSIDE_ADDRESS}/30", "dev", INSIDE)
    ip("link", "set", INSIDE, "up")
    # Packets to an address of the benchmarking range that no host has must never use the uplink.
    ip("route", "replace", "unreachable", "198.18.0.0/15")
    # last, because this route shows that everything else exists
    ip("route", "replace", "default", "via", OUTSIDE_ADDRESS)


def disconnect() -> None:
    run("ip", "link", "del", OUTSIDE, check=False)
    run("nft", "delete", "table", "ip", TABLE, check=False)
