"""The undocumented parts of ansible-core and ansible-runner that ftcluster uses still exist."""

import os
from pathlib import Path

import pytest
from ansible.config.manager import find_ini_config_file
from ansible_runner.config.runner import RunnerConfig
from ansible_runner.runner import Runner

from ftcluster.ansible.private_ansible import (
    command_file,
    config_file,
    ini_line,
    write_runner_settings,
)
from ftcluster.ansible.settings import ansible_environment
from ftcluster.errors import UsageError


def test_the_line_at_which_the_ini_parser_fails(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text("a\n\n[web\nnode1\n")
    assert ini_line(path) == 3
    path.write_text("a\n")
    assert ini_line(path) is None


def test_the_configuration_file_that_ansible_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here, public = (tmp_path / name for name in ("home", "here", "public"))
    for folder in (home, here, public):
        folder.mkdir()
    public.chmod(0o777)
    for file in (home / ".ansible.cfg", here / "ansible.cfg", public / "ansible.cfg"):
        file.touch()
    monkeypatch.setenv("HOME", str(home))
    found = []
    for folder in (home, here, public):
        monkeypatch.chdir(folder)
        for given in (None, "", "/none", str(here), "$HOME/../here/ansible.cfg", "~/.ansible.cfg",
                      "../here", "~nobody/x", str(tmp_path / "none")):  # fmt: skip
            monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
            if given is not None:
                monkeypatch.setenv("ANSIBLE_CONFIG", given)
            found.append(config_file())
            assert found[-1] == (find_ini_config_file() or ""), (folder, given)
    assert {*found} == {
        str(path) for path in (home / ".ansible.cfg", here / "ansible.cfg", public / "ansible.cfg")
    }


@pytest.mark.parametrize("theirs", ["folder", "file"])
def test_another_users_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    """Ansible would execute a strategy plugin named in it when a playbook starts."""
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    folder = tmp_path / "project"
    folder.mkdir(mode=0o755)
    file = folder / "ansible.cfg"
    file.write_text("[defaults]\nstrategy_plugins = .\n")
    monkeypatch.chdir(folder)
    assert config_file() == str(file)
    stat, strange = Path.stat, folder if theirs == "folder" else file

    def of_mallory(path: Path, **words: bool) -> os.stat_result:
        state = stat(path, **words)
        values = list(state)
        values[4] = 4242 if path == strange else values[4]
        return os.stat_result(values)

    monkeypatch.setattr(Path, "stat", of_mallory)
    with pytest.raises(UsageError, match=f"{strange} belongs to user 4242"):
        config_file()
    with pytest.raises(UsageError):
        ansible_environment()
    monkeypatch.setenv("SUDO_UID", "4242")
    assert config_file() == str(file)
    monkeypatch.delenv("SUDO_UID")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(file))  # the user has named the file
    assert config_file() == str(file)


def test_ansible_runner_reads_its_settings_and_writes_its_command(tmp_path: Path) -> None:
    write_runner_settings(tmp_path, 0.25)
    command = command_file(tmp_path, "run")
    config = RunnerConfig(
        str(tmp_path), ident="run", playbook="p.yml", inventory="i.ini", suppress_env_files=True
    )
    config.prepare()
    assert (config.pexpect_timeout, config.suppress_output_file) == (0.25, True)
    config.command = ["true"]
    Runner(config).run()
    assert command.exists()
    assert not (command.parent / "stdout").exists()
