"""What is used of ansible-core and ansible-runner without being documented is still there."""

from pathlib import Path

import pytest
from ansible_runner.config.runner import RunnerConfig
from ansible_runner.runner import Runner

from ftcluster.ansible.private_ansible import (
    command_file,
    config_file,
    ini_line,
    write_runner_settings,
)


def test_the_line_at_which_the_ini_parser_fails(tmp_path: Path) -> None:
    path = tmp_path / "inventory.ini"
    path.write_text("a\n\n[web\nnode1\n")
    assert ini_line(path) == 3
    path.write_text("a\n")
    assert ini_line(path) is None


def test_the_configuration_file_that_ansible_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ansible.cfg"
    file.touch()
    monkeypatch.setenv("ANSIBLE_CONFIG", str(file))
    assert config_file() == str(file)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
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
