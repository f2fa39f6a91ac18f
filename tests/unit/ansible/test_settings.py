import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible import constants as C
from ansible.config.manager import ConfigManager
from ansible.plugins.loader import connection_loader
from ansible_runner.config.runner import RunnerConfig

from ftcluster.ansible.programs import program
from ftcluster.ansible.settings import (
    CHECKING,
    LONGEST_SOCKETS,
    SOCKET_VARIABLE,
    SSH_ARGS,
    ansible_environment,
    for_hosts,
    keys_unchecked_by,
    socket_folder,
)
from ftcluster.errors import FtclusterError

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


@pytest.fixture
def long_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home whose path is too long for ssh's sockets, and a short XDG_RUNTIME_DIR."""
    home = tmp_path / ("x" * 100)
    home.mkdir()
    for name in ("ANSIBLE_CONFIG", SOCKET_VARIABLE, "ANSIBLE_SSH_CONTROL_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield home
    shutil.rmtree(runtime)


def test_a_long_home_leaves_room_for_the_sockets_of_ssh(
    long_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(ansible_environment()[SOCKET_VARIABLE])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # Ansible's name for a socket, and the longest name that ssh gives it (openssh, mux.c)
    ssh = connection_loader.get("ssh", class_only=True)
    path = ssh._create_control_path("h" * 200, 22, "u") % {"directory": folder}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.{'x' * 16}")
        with pytest.raises(OSError, match="too long"):
            listener.bind(f"{long_home}/.ansible/cp/{Path(path).name}.{'x' * 16}")
    assert ansible_environment()[SOCKET_VARIABLE] == str(folder)  # the next command reuses sockets
    # the longest home that needs no other folder
    fits = f"/{'x' * (LONGEST_SOCKETS - len('/.ansible/cp') - 1)}"
    monkeypatch.setenv("HOME", fits)
    assert SOCKET_VARIABLE not in ansible_environment()
    monkeypatch.setenv("HOME", f"{fits}x")
    assert SOCKET_VARIABLE in ansible_environment()


def test_the_users_folder_for_sockets_has_priority(
    long_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = long_home / "ansible.cfg"
    config.write_text("[ssh_connection]\ncontrol_path_dir = /run/mine\n")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(config))
    assert SOCKET_VARIABLE not in ansible_environment()
    assert ansible_environment({SOCKET_VARIABLE: "/run/new"})[SOCKET_VARIABLE] == "/run/new"
    monkeypatch.delenv("ANSIBLE_CONFIG")
    monkeypatch.setenv(SOCKET_VARIABLE, "/run/mine")
    assert SOCKET_VARIABLE not in ansible_environment()


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_folder_for_sockets_that_others_may_open_is_refused(long_home: Path, kind: str) -> None:
    folder = socket_folder()
    if kind == "open":
        folder.chmod(0o755)
    else:
        folder.rename(long_home / "else")
        folder.symlink_to(long_home / "else")
    with pytest.raises(FtclusterError, match="other users can open this folder"):
        socket_folder()


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
