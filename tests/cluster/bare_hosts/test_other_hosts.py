"""An inventory with more hosts than the cluster's."""

from pathlib import Path

from tests.cluster.control import NAMES, THIRD, Control

LOGINS = "journalctl --unit ssh --no-pager | grep -c 'Accepted publickey' || true"


def test_no_other_host_is_connected_to(bare: Control, tmp_path: Path) -> None:
    inventory = bare.inventory("company.ini", NAMES)
    # an open connection would skip the login
    fresh = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path)}

    def logins() -> dict[str, int]:
        return {name: int(bare.shell(name, LOGINS)) for name in NAMES}

    before = logins()
    only = ("-e", f"ftcluster_hosts={THIRD}")
    bare.run("setup", inventory, "--tags", "preflight", *only, **fresh)
    done = bare.run("check", inventory, "--strict", "--quiet", *only, **fresh)
    assert done.stdout.startswith("unfit: 1 host, 1 problem")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    new = {name: count - before[name] for name, count in logins().items()}
    assert new.pop(THIRD) > 0, new
    assert set(new.values()) == {0}, new
