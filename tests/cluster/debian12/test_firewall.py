"""The TCP ports that setup closes on a host, and the message about ports that it cannot close."""

import json
import re
import time

from tests.cluster.cluster import Cluster
from tests.cluster.control import ADDRESS, HEAD, OTHER
from tests.cluster.debian12.conftest import ALONE, PAIR

LISTEN = "import socket, time; s = socket.create_server(('', {port})); time.sleep(300)"


def test_the_firewall_lets_the_cluster_in_and_nobody_else(cluster: Cluster) -> None:
    control = cluster.control
    rules = control.shell(OTHER, "nft list ruleset")
    assert re.findall(r"^table (.*) \{", rules, re.MULTILINE) == ["inet ftcluster"]
    for name in PAIR:
        assert ADDRESS[name] in rules
    server = "import socket; s = socket.create_server(('', PORT)); s.settimeout(40); s.accept()"
    client = "import socket; socket.create_connection((HOST, PORT), timeout=3); print('in')"
    for port in (29555, 41234, 8080):
        listen = ["systemd-run", "-q", "python3", "-c", server.replace("PORT", str(port))]
        control.bed.exec_(OTHER, *listen, check=True)
        time.sleep(0.5)
        program = client.replace("HOST", repr(ADDRESS[OTHER])).replace("PORT", str(port))
        stranger = control.bed.run("python3", "-c", program)
        # ports that no training uses are unchanged
        assert ("in" in stranger.stdout) == (port == 8080), (port, stranger.stderr)
        if port != 8080:
            friend = control.bed.exec_(HEAD, "python3", "-c", program)
            assert "in" in friend.stdout, (port, friend.stderr)


def test_without_root_the_open_ports_are_named(cluster: Cluster) -> None:
    setup = ("setup", cluster.inventory, "-e", "ftcluster_root=false", "--tags")
    shut_out = cluster.control.run(*setup, "preflight")
    assert shut_out.returncode == 1
    assert "the cluster in /opt/ftcluster, so ops cannot train here" in shut_out.stderr
    with cluster.control.changed(ALONE):
        done = cluster.control.run(*setup, "preflight,system")
    assert done.returncode == 0, done.stderr
    ports = "29500-29999 and 32768-60999"
    named = rf"{HEAD}-{OTHER}: root is not available here.*{ports}.*{ADDRESS[HEAD]}, "
    assert re.search(named, done.stderr), done.stderr


def test_a_host_without_nftables_is_refused_unless_no_firewall_is_wanted(cluster: Cluster) -> None:
    control = cluster.control
    setup = ("setup", cluster.inventory, "--tags", "system", "--limit", OTHER)
    nft = ("mv /usr/sbin/nft /usr/sbin/away", "mv /usr/sbin/away /usr/sbin/nft")
    with control.changed({OTHER: nft}):
        refused = control.run(*setup)
        unwanted = control.run(*setup, "-e", "ftcluster_firewall=false")
    assert refused.returncode == 1
    assert "there is no program nft" in refused.stderr
    assert unwanted.returncode == 0, unwanted.stderr


def test_the_hosts_own_local_ports_are_closed_but_for_services_that_are_named(
    cluster: Cluster,
) -> None:
    control = cluster.control
    ports = "sysctl -qw net.ipv4.ip_local_port_range='{}' net.ipv4.ip_local_reserved_ports='{}'"
    listen = "; ".join(
        f'systemd-run -q --unit listen{port} python3 -c "{LISTEN.format(port=port)}"'
        for port in (11111, 11112)
    )
    services = (
        f"{ports.format('10000 65535', '11112')}; {listen}",
        f"{ports.format('32768 60999', '')}; systemctl stop listen11111 listen11112",
    )
    setup = ("setup", cluster.inventory, "--tags", "preflight,system", "--limit", OTHER)
    try:
        with control.changed({OTHER: services}):
            refused = control.run(*setup)
            assert refused.returncode == 1
            assert re.search(rf"{OTHER}: .*: 11111 \(user root\)", refused.stderr)
            assert "11112" not in refused.stderr, "a reserved port is given to nobody"
            named = json.dumps({"ftcluster_firewall_open_ports": [11111]})
            known = control.run(*setup, "-e", named)
            assert known.returncode == 0, known.stderr
            rules = control.shell(OTHER, "nft list table inet ftcluster")
            assert re.search(r"elements = \{ 10000-11111, 11113-65535 \}", rules), rules
            assert re.search(r"elements = \{ 22, 11111 \}", rules), rules
            others = control.shell(HEAD, "nft list table inet ftcluster")
            assert "29500-29999, 32768-60999" in others
    finally:
        again = control.run(*setup)
    assert again.returncode == 0, again.stderr
