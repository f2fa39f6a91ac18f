import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ftcluster.cluster.plugins.modules.mesh_head import (
    known_hosts,
    merged,
    parse_mesh,
    ssh_config,
    texts_of,
    wrong_words,
)

MESH = Path("/opt/ftcluster/mesh")
# names of a directory's accounts in winbind, sssd and realmd
DIRECTORY_USERS = ("jane.doe", "CORP\\jane.doe", "jane.doe@corp.example.com", "corp+jane")
ED, RSA = "ssh-ed25519 AAAAed", "ssh-rsa AAAArsa"


def member(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name, "address": f"10.0.0.{name[-1]}", "port": 22, "user": "ftcluster",
        "host_keys": [RSA, ED], **changes,
    }  # fmt: skip


def config_of(host: str, tmp_path: Path, text: str) -> dict[str, str]:
    """Return the settings that ssh itself reads from a configuration."""
    (tmp_path / "ssh_config").write_text(text)
    argv = ["ssh", "-G", "-F", str(tmp_path / "ssh_config"), host]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split(" ", 1) for line in lines)


def test_a_host_is_known_by_name_and_address() -> None:
    assert known_hosts([member("node2")]) == (
        f"node2,10.0.0.2 {ED}\n"
        f"node2,10.0.0.2 {RSA}\n"
    )  # fmt: skip


def test_another_port_stands_with_the_name() -> None:
    found = known_hosts([member("node2", port=2222, host_keys=[ED])])
    assert found == f"[node2]:2222,[10.0.0.2]:2222 {ED}\n"


def test_a_name_that_is_the_address_stands_once() -> None:
    host = member("10.0.0.2", address="10.0.0.2", host_keys=[ED])
    assert known_hosts([host]) == f"10.0.0.2 {ED}\n"
    assert "Host 10.0.0.2\n" in ssh_config([host], MESH, "")


def test_the_order_of_host_keys_does_not_matter() -> None:
    assert known_hosts([member("node2", host_keys=[ED, RSA])]) == known_hosts([member("node2")])
    assert known_hosts([]) == ""


@pytest.mark.needs("ssh")
def test_ssh_finds_port_user_and_key_by_name_and_by_address(tmp_path: Path) -> None:
    directory = {f"node{n}": user for n, user in enumerate(DIRECTORY_USERS, start=4)}
    members = [member("node2", port=2222), member("node3", user="ops")]
    members += [member(name, user=user) for name, user in directory.items()]
    assert wrong_words(members) == []
    text = ssh_config(members, MESH, "127.0.0.1")
    for name in ("node2", "10.0.0.2"):
        found = config_of(name, tmp_path, text)
        assert (found["hostname"], found["port"], found["user"]) == (
            "10.0.0.2", "2222", "ftcluster",
        )  # fmt: skip
        assert found["identityfile"] == "/opt/ftcluster/mesh/id_ed25519"
        assert found["userknownhostsfile"] == "/opt/ftcluster/mesh/known_hosts"
        assert found["bindaddress"] == "127.0.0.1"
    for name, user in {"node3": "ops", **directory}.items():
        assert config_of(name, tmp_path, text)["user"] == user


@pytest.mark.needs("ssh")
def test_ssh_asks_nothing_and_trusts_no_other_key(tmp_path: Path) -> None:
    found = config_of("node2", tmp_path, ssh_config([member("node2")], MESH, ""))
    expected = {
        "batchmode": "yes", "stricthostkeychecking": "true", "globalknownhostsfile": "none",
        "updatehostkeys": "false", "identitiesonly": "yes", "passwordauthentication": "no",
        "forwardagent": "no",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert "bindaddress" not in found


def test_members_come_in_the_inventorys_order() -> None:
    new = member("node1", address="10.9.9.9")
    known = [member("node3"), member("node1"), member("gone")]
    assert merged(known, [new], ["node1", "node2", "node3"]) == [new, member("node3")]


def test_members_that_the_inventory_does_not_have_are_forgotten() -> None:
    assert merged([member("node1")], [member("node2")], []) == []
    assert merged([], [member("node2")], ["node1", "node2"]) == [member("node2")]


def test_a_record_of_a_newer_version_is_not_taken_for_a_damaged_one() -> None:
    why = r"mesh\.json was written by a newer ftcluster \(format 99, .*: upgrade this ftcluster"
    with pytest.raises(ValueError, match=why):
        parse_mesh('{"format": 99}', MESH / "mesh.json")
    older = '{"address": "10.0.0.1", "members": []}'
    assert parse_mesh(older, MESH / "mesh.json") == json.loads(older)


def test_the_record_is_read_as_it_was_written() -> None:
    assert parse_mesh(None, MESH / "mesh.json") == {}
    text = texts_of([member("node2")], MESH, "10.0.0.1")["mesh.json"]
    assert parse_mesh(text, MESH / "mesh.json") == {
        "address": "10.0.0.1",
        "members": [member("node2")],
    }


@pytest.mark.parametrize(
    "damaged",
    ["{", "[]", "[" * 100_000, '{"members": 1}', '{"members": [1]}', '{"address": 1}',
     json.dumps({"members": [{**member("node2"), "port": "22"}]}),
     json.dumps({"members": [member("node2\nProxyCommand x")]})],
)  # fmt: skip
def test_a_damaged_record_is_named(damaged: str) -> None:
    with pytest.raises(ValueError, match=r"mesh\.json is not a valid record: remove it"):
        parse_mesh(damaged, MESH / "mesh.json")
