"""Ports that verify opens are closed to others, and verify finds a host with open ports."""

import re
from pathlib import Path

from tests.cluster.cluster import TWO, Cluster
from tests.cluster.control import HEAD, NAMES, OTHER, THIRD
from tests.cluster.hosts.listening import CLOSED, opened_ports

SCRIPTS = Path(__file__).parents[1] / "scripts"


def test_a_host_that_lets_the_control_node_in_is_refused_where_the_firewall_is_required(
    cluster: Cluster,
) -> None:
    """A unit test of verify checks the warning for other clusters."""
    control = cluster.control
    verify = ("setup", cluster.inventory, "--tags", "verify", "-e", "ftcluster_firewall=required")
    load = "systemctl reload ftcluster-firewall"
    with (
        control.changed({OTHER: ("nft delete table inet ftcluster", load)}),
        opened_ports(control, NAMES) as opened,
    ):
        refused = control.run(*verify)
    what = rf"{OTHER}: TCP ports of training are open to 198\.18\.0\.1, which is not in the cluster"
    assert refused.returncode == 1
    assert re.search(what, refused.stderr), refused.stderr
    for name in (HEAD, THIRD):
        assert f"{name}: TCP ports" not in refused.stderr
    for name in NAMES:
        assert opened[name], f"nothing was heard on {name}"
        assert opened[name] <= CLOSED, sorted(opened[name] - CLOSED)


def test_a_run_says_where_the_rules_are_gone_and_is_refused_where_they_must_be_there(
    cluster: Cluster,
) -> None:
    """Report missing rules; refuse the run if rules are required."""
    control = cluster.control
    run = ("run", *TWO, "--", str(SCRIPTS / "sum.py"))
    required = ("run", *TWO, "-e", "ftcluster_firewall=required", *run[-2:])
    what = rf"{OTHER}: the firewall's rules that setup has written are not loaded.*29500-29999"
    folders = control.shell(HEAD, "ls /opt/ftcluster/runs")
    gone = {OTHER: ("nft flush ruleset", "systemctl reload-or-restart ftcluster-firewall")}
    with control.changed(gone):
        refused = control.run(*required)
        assert control.shell(HEAD, "ls /opt/ftcluster/runs") == folders
        warned = control.run(*run)
    assert refused.returncode == 1
    assert re.search(what, refused.stderr), refused.stderr
    assert f"{HEAD}: the firewall" not in refused.stderr
    assert warned.returncode == 0, warned.stderr
    assert re.search(rf"note: {what}", warned.stderr), warned.stderr
