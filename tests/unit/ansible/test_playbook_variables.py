"""Variables reach Ansible as data, never as templates, in a file that only this user can read."""

import json
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ansible_runner
import pytest
import yaml

from ftcluster.ansible.playbook import TaskEvent, never_a_template, run_playbook
from ftcluster.errors import FtclusterError

# uses of variables as in the collection's own playbooks
PLAYBOOK = """
- name: Echo
  hosts: "{{ head }}"
  gather_facts: false
  become: "{{ user | length > 0 }}"
  become_user: "{{ user or omit }}"
  tasks:
    - name: Write as JSON
      ansible.builtin.copy:
        dest: "{{ out }}/whole.json"
        content: "{{ planted | to_nice_json }}\\n"
        mode: "0600"
    - name: Combine
      ansible.builtin.set_fact:
        kept: "{{ planted | combine({'more': planted.words | join(',')}) }}"
    - name: Read again from another play's host
      ansible.builtin.copy:
        dest: "{{ out }}/kept.json"
        content: "{{ hostvars[inventory_hostname].kept | to_json }}"
        mode: "0600"
    - name: Each item
      ansible.builtin.command:
        argv: [printf, "%s", "{{ item.word }}"]
      loop: "{{ planted.rows }}"
      loop_control:
        label: "{{ item.word }}"
      register: said
    - name: A message and an environment
      ansible.builtin.debug:
        msg: "{{ said.results | map(attribute='stdout') | join(' ') }} {{ planted.words[0] }}"
      environment: {WORD: "{{ planted.words[0] }}"}
    - name: A file that is not there
      block:
        - name: Include it
          ansible.builtin.include_tasks: "{{ planted.words[0] }}.yml"
      rescue:
        - name: Go on
          ansible.builtin.meta: noop
"""


def inventory_of(folder: Path, host: str = "localhost") -> Path:
    path = folder / "inventory.yml"
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    path.write_text(yaml.safe_dump({"all": {"hosts": {host: variables}}}))
    return path


def run(folder: Path, tasks: str, variables: dict[str, Any], *options: str) -> list[TaskEvent]:
    """Run a playbook here; return its events after a successful end."""
    playbook = folder / "playbook.yml"
    playbook.write_text(tasks)
    events: list[TaskEvent] = []
    outcome = run_playbook(
        str(playbook), (inventory_of(folder),), variables, events.append, options=options,
        time_limit_seconds=100,
    )  # fmt: skip
    failed = [event.message for event in events if event.kind == "failed"]
    assert outcome.state == "done", [outcome.output, *failed]
    return events


def test_what_is_planted_arrives_as_it_is_and_is_never_executed(tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    words = [
        f"{{{{ lookup('pipe', 'touch {trap}') }}}}",
        f"{{% for _ in [1] %}}{{{{ lookup('pipe', 'touch {trap}') }}}}{{% endfor %}}",
        f"#jinja2: trim_blocks: true\n{{{{ lookup('pipe', 'touch {trap}') }}}}",
        "5", "yes", "null", "", "1e-3", "=", "<<", "!unsafe x", "a: b", "- c", "@file", "\t", "\n",
        "\x00\x07\x1b[31m\x7f\x85\u2028", "\U0001f600", "grün", "'\"\\", "[1, 2]", "{'a': 1}",
    ]  # fmt: skip
    planted = {
        "words": words,
        "rows": [{"word": word} for word in words[:3]],
        "keys": {word: word for word in words},
        "numbers": [5e-05, 1e100, 3, -0.5, True, None],
    }
    variables = {"head": "localhost", "user": "", "out": str(tmp_path), "planted": planted}
    events = run(tmp_path, PLAYBOOK, variables)
    assert not trap.exists()
    assert json.loads((tmp_path / "whole.json").read_text()) == planted
    kept = {**planted, "more": ",".join(words)}
    assert json.loads((tmp_path / "kept.json").read_text()) == kept
    [said] = [event for event in events if event.message and event.kind == "ok"]
    assert said.message.startswith(words[0])
    assert said.message.endswith(words[0])


def test_the_users_own_variables_have_the_last_word_and_may_be_templates(tmp_path: Path) -> None:
    tasks = "- hosts: all\n  gather_facts: false\n  tasks:\n    - debug: {msg: '{{ a }} {{ b }}'}\n"
    own = ("--extra-vars", "a={{ 1 + 1 }}")
    events = run(tmp_path, tasks, {"a": "ours", "b": "{{ 1 + 1 }}"}, *own)
    assert [event.message for event in events if event.message] == ["2 {{ 1 + 1 }}"]


def test_ten_thousand_files_with_long_names(tmp_path: Path) -> None:
    names = [f"{'folder-' * 20}/{number:05}.py" for number in range(10_000)]
    tasks = (
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - debug: {msg: '{{ run_script.files | length }} {{ run_script.files[9999] }}'}\n"
    )
    events = run(tmp_path, tasks, {"run_script": {"files": names}})
    assert [event.message for event in events if event.message] == [f"10000 {names[-1]}"]


def test_variables_are_in_no_argument_and_no_file_but_in_a_pipe_that_nobody_else_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    thread = SimpleNamespace(is_alive=lambda: False)

    def run_async(**arguments: Any) -> tuple[Any, Any]:
        given.update(arguments)
        folder = Path(arguments["private_data_dir"])
        files = [path.read_text() for path in folder.rglob("*") if path.is_file()]
        given["files"] = files
        pipe = folder / "variables.yml"
        given["modes"] = [path.stat().st_mode for path in (folder, pipe)]
        given["through"] = pipe.read_bytes()
        given["again"] = pipe.exists()
        return thread, SimpleNamespace(status="successful")

    monkeypatch.setattr(ansible_runner, "run_async", run_async)
    run_playbook("p.yml", (tmp_path,), {"a": "s3cret"}, lambda _: None, time_limit_seconds=9)
    assert given.pop("modes") == [stat.S_IFDIR | 0o700, stat.S_IFIFO | 0o600]
    assert given.pop("through") == b"--- !unsafe\na: s3cret\n"
    assert not given.pop("again")
    assert f"@{given['private_data_dir']}/variables.yml" in given["cmdline"]
    assert "s3cret" not in str(given)
    assert not Path(given["private_data_dir"]).exists()


def test_what_is_no_unicode_is_refused_in_one_line() -> None:
    with pytest.raises(FtclusterError, match=r"accepts only valid Unicode.*caf"):
        never_a_template({"run": ["caf\udce9"]})
