"""The hints that follow Ansible's own errors, in real playbooks."""

import json
from pathlib import Path

import pytest
import yaml

from ftcluster.ansible.ansible_words import NO_ACCOUNT, PYTHON, VAULT, hint_of
from ftcluster.ansible.playbook import TaskEvent, run_playbook

PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks: [{ansible.builtin.ping: }]
"""
# the encrypted text of a password, made with ansible-vault and a secret that nobody knows
SEALED = """$ANSIBLE_VAULT;1.1;AES256
35626232346233366635303532386265386565616161393666333332316331643038386338616536
3038386235383962343466646635376162636463323137350a646137386633383130643034636635
33316430373539333062333138336563663664303436623032396136363164356234663939353862
6633623737613935360a643732313362343963303065353132313139393032363039646462343833
3935"""


@pytest.mark.parametrize(
    ("variables", "script", "hint"),
    [
        ({"ansible_become_password": {"__ansible_vault": SEALED}}, "", VAULT),
        ({}, "echo 'pyenv: python3.13: command not found' >&2; exit 127", PYTHON),
        ({}, None, PYTHON),
    ],
    ids=["vault", "shim", "missing"],
)
def test_an_error_says_what_to_do(
    tmp_path: Path, variables: dict[str, object], script: str | None, hint: str
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    host = {"ansible_connection": "local", "ansible_python_interpreter": str(python), **variables}
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": {"node1": host}}}))
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(PLAYBOOK)
    if "ansible_become_password" in variables:
        sealed = "\n".join(f"          {line}" for line in SEALED.splitlines())
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(
            f"{yaml.safe_dump({'all': {'hosts': {'node1': {'ansible_connection': 'local'}}}})}"
            f"  vars:\n    ansible_become_password: !vault |\n{sealed}\n"
        )
    events: list[TaskEvent] = []
    outcome = run_playbook(str(playbook), (inventory,), {}, events.append, time_limit_seconds=100)
    assert outcome.state == "failed"
    [failure] = outcome.failures
    assert failure.message.splitlines()[-1] == hint
    assert "/bin/python" not in hint  # this path may be the missing path
    if script is None:
        first, *more = failure.message.splitlines()
        assert (first, more) == (f"there is no Python at {python}", [hint])


def test_other_words_have_none() -> None:
    assert hint_of("group_vars/vault.yml: no such file") == ""


def test_a_host_with_a_new_disk_does_not_need_another_python() -> None:
    """Recognize the message of Ansible with the sudo of Debian 12."""
    message = (
        "Module result deserialization failed: No start of json char found\n"
        "sudo: unknown user ftcluster\nsudo: error initializing audit plugin sudoers_audit"
    )
    assert hint_of(message) == NO_ACCOUNT
    assert "ftcluster setup" in NO_ACCOUNT
