"""Activating a stack on all hosts; if one host failed, on none, or on the others."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.programs import CONTROL

PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        preflight_facts: {current: "{{ current }}"}
        torch_stack_path: "{{ place }}/native-2"
        torch_stack_choice: {folder: native-2}
    - ansible.builtin.fail:
      when: inventory_hostname == 'node2'
    - ansible.builtin.import_role:
        name: ftcluster.cluster.torch_stack
        tasks_from: activate.yml
      vars: {torch_stack_prefix: "{{ place }}/{{ inventory_hostname }}"}
"""


@pytest.mark.parametrize(("current", "hosts"), [("", ["node0", "node1"]), ("native-1", [])])
def test_a_host_that_failed_keeps_the_others_from_another_stack_but_not_from_the_first(
    tmp_path: Path, current: str, hosts: list[str]
) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    (tmp_path / "native-2").mkdir()
    (tmp_path / "native-2/.complete").touch()
    for number in range(3):
        (tmp_path / f"node{number}").mkdir()
    variables = {"ansible_connection": "local", "current": current, "place": str(tmp_path),
                 "ansible_python_interpreter": str(CONTROL / "python")}  # fmt: skip
    done = subprocess.run(
        [CONTROL / "ansible-playbook", "-i", "node0,node1,node2", "play.yml",
         "-e", json.dumps(variables)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    linked = sorted(path.parent.name for path in tmp_path.glob("node*/current"))
    assert linked == hosts, done.stdout + done.stderr
    assert ("because node2 failed" in done.stdout) == (not hosts), done.stdout
