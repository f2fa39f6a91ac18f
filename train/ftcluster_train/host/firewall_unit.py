"""Whether the firewall's rules of this host were loaded, as far as an ordinary user may see.

Only root may list rules. systemd tells everybody whether the unit that loads them is active, so
that a host is found whose unit failed at boot or was stopped; rules that were flushed behind its
back are not. Standard library only.
"""

import subprocess
from pathlib import Path

# of the role firewall
RULES, UNIT = Path("/etc/ftcluster/firewall.nft"), "ftcluster-firewall.service"
NOT_ACTIVE = (3, 4)  # exit codes of `systemctl is-active`: not active, no such unit
SECONDS = 5.0


def lacks_rules() -> bool:
    """Whether setup has made rules here and their unit is not active."""
    if not RULES.exists():
        return False
    try:
        done = subprocess.run(
            ["systemctl", "is-active", "--quiet", UNIT], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode in NOT_ACTIVE


def notice(host: str) -> str:
    """What a user should know of a host that lacks them."""
    return (
        f"{host}: the firewall's rules that setup has made were not loaded ({UNIT} is not active), "
        f"so its ports of training may be open to others: sudo systemctl restart {UNIT} there"
    )
