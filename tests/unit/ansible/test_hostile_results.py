"""Results of a hostile host in a real playbook: all other keys are only the host's claims."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster.ansible import playbook as playbook_module
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent, run_playbook

PLAYBOOK = """
- hosts: node1
  gather_facts: false
  tasks: [{name: Ask, ansible.builtin.command: {argv: ["true"]}}]
- hosts: all
  gather_facts: false
  tasks:
    - name: Then
      ansible.builtin.debug: {msg: "{{ inventory_hostname }} {{ planted | default('without') }}"}
"""


def answered(folder: Path, **claims: Any) -> tuple[PlaybookOutcome, list[TaskEvent]]:
    """Return the events of a playbook whose first host adds these claims to each result."""
    answer = json.dumps({"changed": True, "rc": 0, "stdout": "", "stderr": "", **claims})
    return played(folder, f"cat <<'END'\n{answer}\nEND")


def played(folder: Path, answer: str) -> tuple[PlaybookOutcome, list[TaskEvent]]:
    """Run a playbook whose hosts execute this program instead of any module."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    hosts = {
        name: {"ansible_connection": "local", "ansible_python_interpreter": str(python)}
        for name in ("node1", "node2")
    }
    inventory, playbook = folder / "hosts.yml", folder / "playbook.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    playbook.write_text(PLAYBOOK)
    events: list[TaskEvent] = []
    outcome = run_playbook(str(playbook), (inventory,), {}, events.append, time_limit_seconds=100)
    return outcome, events


def test_no_host_adds_a_host_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a user may have this setting for other playbooks
    monkeypatch.setenv("ANSIBLE_INJECT_FACT_VARS", "true")
    claims = {
        "add_host": {"host_name": "another", "groups": [], "host_vars": {"planted": "x"}},
        "add_group": "planted",
        "ansible_facts": {"planted": "x", "ansible_python_interpreter": "/planted"},
        "ansible_stats": {"data": {"planted": "x"}, "per_host": False, "aggregate": False},
        "include": "/planted.yml",
        "include_args": {"planted": "x"},
        "_ansible_vars": {"planted": "x"},
        "_ansible_notify": ["planted"],
    }
    outcome, events = answered(tmp_path, **claims)
    assert outcome.state == "done", outcome.output
    assert sorted(one.message for one in events if one.message) == [
        "node1 without",
        "node2 without",
    ]


def test_an_answer_that_fills_the_memory_ends_ansible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playbook_module, "MOST_MEMORY_BYTES", 500 << 20)
    monkeypatch.setattr(playbook_module, "LOOK_SECONDS", 0.1)
    outcome, events = played(tmp_path, "head -c 2000000000 /dev/zero | tr '\\\\0' x")
    assert outcome.state == "failed"
    assert "more than 0.5 GB of memory on this machine" in outcome.output
    assert "Hosts that have not responded yet: node1;" in outcome.output
    assert not [one for one in events if one.kind in ("ok", "changed")]
