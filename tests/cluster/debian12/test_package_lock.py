"""Setup while another process holds the package manager's lock."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.cluster import Cluster
from tests.cluster.control import HEAD, OTHER, Control

LOCK = "/var/lib/dpkg/lock-frontend"
# hold the lock of apt and dpkg while the firewall's program is missing
HOLD = f"""
apt-get -qq purge nftables > /dev/null
systemd-run -q --unit hold python3 -c "
import fcntl, time
file = open('{LOCK}', 'w')
fcntl.lockf(file, fcntl.LOCK_EX)
open('/run/held', 'w').close()
time.sleep(3000)"
until [ -e /run/held ]; do sleep 0.1; done
"""
RELEASE = "systemctl stop hold; rm -f /run/held"
WAITS = (
    rf"{OTHER}: waiting for the package manager's lock: process \d+ \(.*python3.*\) holds {LOCK}"
)


@contextmanager
def held(control: Control) -> Iterator[None]:
    """Purge nftables and hold the lock; release the lock at the end."""
    try:
        control.shell(OTHER, HOLD)
        yield
    finally:
        control.shell(OTHER, RELEASE)


def rules(control: Control) -> str:
    """Return the firewall rules of the host OTHER."""
    return control.shell(OTHER, "nft list table inet ftcluster || true")


def test_setup_waits_until_the_package_lock_is_released(cluster: Cluster) -> None:
    control = cluster.control
    with held(control):
        setup = control.start("setup", cluster.inventory, "--limit", OTHER, "--tags", "system")
        assert setup.stderr is not None
        lines = []
        for line in setup.stderr:
            lines.append(line)
            if re.search(WAITS, line):
                control.shell(OTHER, RELEASE)
                break
        _, rest = setup.communicate(timeout=600)
    assert setup.returncode == 0, "".join(lines) + rest
    assert f"{OTHER}: changed: Install packages: nftables" in rest
    assert "failed:" not in rest
    assert "29550-29799" in rules(control)


def test_a_host_whose_package_lock_stays_busy_fails_and_names_the_holder(cluster: Cluster) -> None:
    control = cluster.control
    limit = ("-e", "os_package_lock_seconds=2")
    with held(control):
        done = control.run("setup", cluster.inventory, "--tags", "system", *limit)
    assert done.returncode == 1
    problem = (
        rf"setup failed on 1 of 2 hosts\n  {OTHER}: nftables cannot be installed: after a wait "
        rf"of 2 s, process \d+ \(.*python3.*\) holds {LOCK}\. Wait until this process has ended"
    )
    assert re.search(problem, done.stderr), done.stderr
    assert f"{HEAD}: failed" not in done.stderr
    again = control.run("setup", cluster.inventory, "--limit", OTHER, "--tags", "system")
    assert again.returncode == 0, again.stderr
    assert "29550-29799" in rules(control)
