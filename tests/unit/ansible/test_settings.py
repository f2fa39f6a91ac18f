import os
from pathlib import Path

import pytest

from ftcluster.ansible.settings import SSH_ARGS, ansible_environment

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


def test_a_command_changes_what_the_user_has_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", os.devnull)
    monkeypatch.delenv("ANSIBLE_TIMEOUT", raising=False)
    monkeypatch.setenv("ANSIBLE_FORKS", "3")
    found = ansible_environment({"ANSIBLE_TIMEOUT": "7", "ANSIBLE_FORKS": "9", "ANSIBLE_X": "y"})
    assert (found["ANSIBLE_TIMEOUT"], found["ANSIBLE_X"]) == ("7", "y")
    assert "ANSIBLE_FORKS" not in found
