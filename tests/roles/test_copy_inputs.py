"""Nothing is copied to any host unless all hosts have the space."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.programs import CONTROL, ROOT

PLAYBOOK = """
- hosts: all
  gather_facts: false
  any_errors_fatal: true
  vars:
    train_folders:
      - {source: "{{ place }}/small", path: "{{ place }}/{{ inventory_hostname }}/data/small-1"}
      - {source: "{{ place }}/large", path: "{{ place }}/{{ inventory_hostname }}/models/large-1"}
  tasks:
    - ansible.builtin.import_tasks: "{{ tasks }}"
"""


def test_each_host_without_space_is_named_before_anything_is_copied(tmp_path: Path) -> None:
    for name, size in (("small", 1), ("large", 2 * free_bytes(tmp_path))):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "file").open("wb") as file:
            file.truncate(size)  # a hole, which needs no space here
    (tmp_path / "c/models/large-1").mkdir(parents=True)  # this host has the model already
    (tmp_path / "inventory.ini").write_text("a\nb\nc\n")
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    variables = {"ansible_connection": "local", "place": str(tmp_path),
                 "ansible_python_interpreter": sys.executable,
                 "tasks": str(ROOT / "playbooks/tasks/copy-inputs.yml")}  # fmt: skip

    def run() -> str:
        return subprocess.run(
            [CONTROL / "ansible-playbook", "-i", "inventory.ini", "play.yml",
             "-e", json.dumps(variables)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip

    stdout = run()
    for name in ("a", "b"):
        [line] = [line for line in stdout.splitlines() if line.startswith(f"fatal: [{name}]")]
        assert f"GB in {tmp_path}, but only " in line
        assert "GB are free; free some space there, or set the cluster up" in line
    assert "ok: [c]" in stdout
    assert not any((tmp_path / name / "data").exists() for name in "abc")
    os.truncate(tmp_path / "large/file", 1)
    stdout = run()
    assert "fatal" not in stdout
    assert all((tmp_path / name / "data/small-1/file").is_file() for name in "abc")
    assert (tmp_path / "a/models/large-1/file").is_file()


def free_bytes(folder: Path) -> int:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize
