import os
from pathlib import Path

import pytest

from ftcluster.ansible.settings import SSH_ARGS, ansible_environment

SETTINGS = ("PIPELINING", "FORKS", "TIMEOUT", "SSH_ARGS", "CONFIG")


def settings(
    monkeypatch: pytest.MonkeyPatch, config: Path | None = None, **environment: str
) -> dict[str, str]:
    """Ansible's environment where the user has set only what is given."""
    for name in SETTINGS:
        monkeypatch.delenv(f"ANSIBLE_{name}", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(f"ANSIBLE_{name}", value)
    if config:
        monkeypatch.setenv("ANSIBLE_CONFIG", str(config))
    return ansible_environment()


def test_the_settings_of_ansible_where_the_user_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.cfg").touch()
    found = settings(monkeypatch, tmp_path / "empty.cfg")
    assert found["ANSIBLE_FORKS"] == "32"
    assert found["ANSIBLE_TIMEOUT"] == "30"
    assert found["ANSIBLE_PIPELINING"] == "true"
    assert found["ANSIBLE_SSH_ARGS"] == SSH_ARGS
    assert (Path(found["PATH"].split(os.pathsep)[0]) / "ansible-playbook").exists()


def test_what_the_users_ansible_cfg_sets_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "ansible.cfg"
    config.write_text(
        "[defaults]\nforks = 5\n[ssh_connection]\nssh_args = -o ProxyJump=%r@jump -C\n"
    )
    found = settings(monkeypatch, config)
    assert "ANSIBLE_FORKS" not in found
    assert "ANSIBLE_SSH_ARGS" not in found
    assert found["ANSIBLE_TIMEOUT"] == "30"
    assert found["ANSIBLE_PIPELINING"] == "true"


def test_an_ansible_cfg_beside_the_user_counts_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ansible.cfg").write_text("[defaults]\ntimeout: 60\n")
    monkeypatch.chdir(tmp_path)
    assert "ANSIBLE_TIMEOUT" not in settings(monkeypatch)


def test_what_the_environment_sets_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.cfg").touch()
    found = settings(monkeypatch, tmp_path / "empty.cfg", FORKS="3")
    assert "ANSIBLE_FORKS" not in found
    assert "ANSIBLE_SSH_ARGS" in found


def test_an_ansible_cfg_that_cannot_be_read_is_for_ansible_to_complain_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "ansible.cfg"
    config.write_text("forks = 5\n")
    assert settings(monkeypatch, config)["ANSIBLE_FORKS"] == "32"


def test_a_command_changes_what_the_user_has_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", os.devnull)
    monkeypatch.delenv("ANSIBLE_TIMEOUT", raising=False)
    monkeypatch.setenv("ANSIBLE_FORKS", "3")
    found = ansible_environment({"ANSIBLE_TIMEOUT": "7", "ANSIBLE_FORKS": "9", "ANSIBLE_X": "y"})
    assert (found["ANSIBLE_TIMEOUT"], found["ANSIBLE_X"]) == ("7", "y")
    assert "ANSIBLE_FORKS" not in found
