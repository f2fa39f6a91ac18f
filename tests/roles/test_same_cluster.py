"""A launch continues only if the head's stack and record equal those of the plan."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from ftcluster.ansible.playbook import TaskEvent, run_playbook
from tests.programs import CONTROL, ROOT

RECORD = '{"format": 1, "drained": {"a": {"why": "{{ x }} \\n", "since": "2026-01-31"}}}'
PLAYBOOK = """
- hosts: all
  gather_facts: false
  vars:
    train_rank_user: ""
    train_stack: "{{ place }}/{{ inventory_hostname }}/current"
    train_head: "{{ inventory_hostname }}"
  tasks:
    - ansible.builtin.include_tasks: "{{ tasks }}"
    - ansible.builtin.debug: {msg: went on}
"""


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_stack_and_the_record_are_compared(tmp_path: Path) -> None:
    # the head's stack and record, the plan's stack and record, and True if the launch continues
    cases = {
        "same": ("native", RECORD, "native", RECORD, True),
        "none": ("native", "", "native", "", True),
        "stack": ("native-trackers", RECORD, "native", RECORD, False),
        "record": ("native", RECORD, "native", "", False),
        "other": ("native", RECORD, "native", RECORD + " ", False),
        # not the usual head, which is lost
        "spare": ("native", "", "native", RECORD, True),
    }
    lines = []
    for name, (stack, record, known_stack, known_record, _) in cases.items():
        folder = tmp_path / name / f"stacks/{stack}-0a"
        folder.mkdir(parents=True)
        (tmp_path / name / "current").symlink_to(folder)
        if record:
            (tmp_path / name / "cluster.json").write_text(record + "\n")
        known = {"stack": known_stack, "record": sha256(known_record)}
        lines.append(f"{name} train_known='{json.dumps(known)}'")
    (tmp_path / "inventory.ini").write_text("\n".join(lines) + "\n")
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    variables = {"ansible_connection": "local", "place": str(tmp_path),
                 "ansible_python_interpreter": sys.executable,
                 "tasks": str(ROOT / "playbooks/tasks/same-cluster.yml")}  # fmt: skip
    done = subprocess.run(
        [CONTROL / "ansible-playbook", "-i", "inventory.ini", "play.yml",
         "-e", json.dumps(variables)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    for name, (*_, goes_on) in cases.items():
        assert (f'ok: [{name}] => {{\n    "msg": "went on"' in done.stdout) == goes_on, done.stdout
        assert (f"fatal: [{name}]: FAILED!" in done.stdout) != goes_on


def test_the_record_of_the_clusters_head_counts_also_for_another_head(tmp_path: Path) -> None:
    folder = tmp_path / "stacks/native-0a"
    folder.mkdir(parents=True)
    (tmp_path / "current").symlink_to(folder)
    record = tmp_path / "cluster.json"
    record.write_text(RECORD)
    local = f"ansible_connection=local ansible_python_interpreter={sys.executable}"
    known = json.dumps({"stack": "native", "record": sha256(RECORD)})[:-1]
    (tmp_path / "inventory.ini").write_text(
        f"head {local}\n"
        "off ansible_connection=ssh ansible_host=127.0.0.1 ansible_port=1\n"
        f"other {local}\n"
    )
    play = PLAYBOOK.replace("- hosts: all", "- hosts: other\n  any_errors_fatal: true")
    (tmp_path / "play.yml").write_text(
        play.replace("{{ place }}/{{ inventory_hostname }}", str(tmp_path))
    )
    for host, text, goes_on in (
        ("head", RECORD, True), ("head", RECORD + " x", False), ("off", RECORD + " x", True),
    ):  # fmt: skip
        record.write_text(text)
        variables = {"train_known": json.loads(f'{known}, "host": "{host}"}}'),
                     "tasks": str(ROOT / "playbooks/tasks/same-cluster.yml")}  # fmt: skip
        events: list[TaskEvent] = []
        outcome = run_playbook(
            str(tmp_path / "play.yml"), (tmp_path / "inventory.ini",), variables, events.append,
            time_limit_seconds=120,
        )  # fmt: skip
        assert (outcome.state == "done") == goes_on, outcome
        assert not outcome.unreachable
        assert ("went on" in [event.message for event in events]) == goes_on
