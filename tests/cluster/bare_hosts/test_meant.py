"""An inventory has hosts beside those of the cluster."""

from tests.cluster.hosts.cluster import NAMES, THIRD
from tests.cluster.hosts.control import Control

LOGINS = "journalctl --unit ssh --no-pager | grep -c 'Accepted publickey' || true"


def test_no_other_host_is_connected_to(bare: Control) -> None:
    inventory = bare.inventory("company.ini", NAMES)

    def logins() -> dict[str, int]:
        found = {name: bare.bed.exec_(name, "sh", "-c", LOGINS, check=True) for name in NAMES}
        return {name: int(done.stdout) for name, done in found.items()}

    before = logins()
    for verb in (("setup", inventory, "--tags", "preflight"), ("check", inventory)):
        bare.run(*verb, "-e", f"ftcluster_hosts={THIRD}")
    new = {name: count - before[name] for name, count in logins().items()}
    assert new.pop(THIRD) > 0, new
    assert set(new.values()) == {0}, new
