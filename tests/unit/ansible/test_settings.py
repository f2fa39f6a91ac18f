import os
import subprocess
from pathlib import Path

import pytest
from ansible import constants as C
from ansible.config.manager import ConfigManager
from ansible.plugins.loader import connection_loader
from ansible_runner.config.runner import RunnerConfig

from ftcluster.ansible.programs import program
from ftcluster.ansible.settings import (
    CHECKING,
    SSH_ARGS,
    ansible_environment,
    for_hosts,
    keys_unchecked_by,
)

OURS = {
    "ANSIBLE_FORKS": "32", "ANSIBLE_TIMEOUT": "30", "ANSIBLE_PIPELINING": "true",
    "ANSIBLE_SSH_ARGS": SSH_ARGS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "environment", "left_out"),
    [
        ("", {}, set()),
        ("[defaults]\nforks = 5\n[ssh_connection]\nssh_args = -o ProxyJump=%r@jump -C\n", {},
         {"ANSIBLE_FORKS", "ANSIBLE_SSH_ARGS"}),
        ("", {"ANSIBLE_FORKS": "3"}, {"ANSIBLE_FORKS"}),
        ("forks = 5\n", {}, set()),  # not valid: Ansible itself reports it
    ],
)  # fmt: skip
@pytest.mark.parametrize("beside", [False, True])
def test_what_the_user_has_set_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, environment: dict[str, str],
    left_out: set[str], beside: bool,
) -> None:  # fmt: skip
    for name in ("ANSIBLE_CONFIG", *OURS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "ansible.cfg").write_text(config)
    if beside:
        monkeypatch.chdir(tmp_path)
    else:
        monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    found = ansible_environment()
    assert {name: found[name] for name in OURS if name in found} == {
        name: value for name, value in OURS.items() if name not in left_out
    }
    assert (Path(found["PATH"].split(os.pathsep)[0]) / "ansible-playbook").exists()


def test_a_long_temporary_folder_is_not_ansibles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", f"/{'x' * 74}")
    assert "TMPDIR" not in ansible_environment()
    monkeypatch.setattr("tempfile.tempdir", f"/{'x' * 75}")
    assert ansible_environment()["TMPDIR"] == "/tmp"


def test_a_command_changes_what_the_user_has_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", os.devnull)
    monkeypatch.delenv("ANSIBLE_TIMEOUT", raising=False)
    monkeypatch.setenv("ANSIBLE_FORKS", "3")
    found = ansible_environment({"ANSIBLE_TIMEOUT": "7", "ANSIBLE_FORKS": "9", "ANSIBLE_X": "y"})
    assert (found["ANSIBLE_TIMEOUT"], found["ANSIBLE_X"]) == ("7", "y")
    assert "ANSIBLE_FORKS" not in found


@pytest.mark.parametrize(
    ("config", "environment", "checked", "why"),
    [
        ("", {}, True, ""),
        ("[defaults]\nhost_key_checking = False\n", {}, False, "host_key_checking=False in {file}"),
        ("[ssh_connection]\nhost_key_checking = no\n", {}, False, "host_key_checking=no in {file}"),
        ("[defaults]\nhost_key_checking = False\n[ssh_connection]\nhost_key_checking = True\n", {},
         True, ""),
        ("[defaults]\nhost_key_checking = no\n", {"ANSIBLE_HOST_KEY_CHECKING": "true"}, True, ""),
        ("", {"ANSIBLE_SSH_HOST_KEY_CHECKING": "0"}, False,
         "ANSIBLE_SSH_HOST_KEY_CHECKING=0 in the environment"),
    ],
)  # fmt: skip
def test_host_keys_are_checked_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, environment: dict[str, str],
    checked: bool, why: str,
) -> None:  # fmt: skip
    """Ansible's own connection plugin reads ansible-runner's setting."""
    file = tmp_path / "ansible.cfg"
    file.write_text(config)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(file))
    for name in CHECKING:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert keys_unchecked_by() == why.format(file=file)
    runner = RunnerConfig(
        str(tmp_path), playbook="p.yml", inventory="i.ini", envvars=ansible_environment()
    )
    runner.prepare()
    for name in CHECKING:
        monkeypatch.delenv(name, raising=False)
        if name in runner.env:
            monkeypatch.setenv(name, runner.env[name])
    loader = connection_loader.get("ssh", class_only=True)
    assert loader
    manager = ConfigManager(str(file))
    manager.initialize_plugin_configuration_definitions(
        "connection", "ssh", C.config.get_configuration_definitions("connection", "ssh")
    )
    found = manager.get_config_value(
        "host_key_checking", plugin_type="connection", plugin_name="ssh"
    )
    assert found == checked


# the first connection is refused, as by a jump host with MaxStartups; the next login succeeds
SSH = """#!/bin/bash
[[ " $* " == *" xeon1 "* ]] || exit 0
if mkdir "${0%/*}/turned-away"; then
  echo "kex_exchange_identification: Connection closed by remote host" >&2
  exit 255
fi
eval "${@: -1}"
"""


def test_many_hosts_are_asked_again_where_a_jump_host_turns_them_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ansible.cfg").touch()
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    monkeypatch.delenv("ANSIBLE_SSH_RETRIES", raising=False)
    assert for_hosts(10) == {}
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    environment = os.environ | ansible_environment(for_hosts(11))
    done = subprocess.run(
        [program("ansible"), "-i", "xeon1,", "xeon1", "-m", "raw", "-a", "echo here",
         "-e", f"ansible_ssh_executable={ssh}"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "here" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "turned-away").exists()
