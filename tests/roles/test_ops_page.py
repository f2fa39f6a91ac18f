"""The pages for ops teams can be pasted, and name only what exists."""

import configparser
import os
import re
import subprocess
from pathlib import Path

import pytest

from ftcluster.ansible import settings as runner
from tests import ops_page
from tests.ops_page import options_of
from tests.programs import CONTROL, ROOT

PAGE = ops_page.read_page()
SINGLE_ROLES = ops_page.read_single_roles()
PLAYBOOKS = ops_page.playbooks(SINGLE_ROLES)
each_playbook = pytest.mark.parametrize(
    "playbook", PLAYBOOKS, ids=[f"playbook{number}" for number in range(len(PLAYBOOKS))]
)


def test_blocks_are_read_with_what_is_above_them() -> None:
    file = "<!-- file: a.txt -->\n```text\nx\n```\n"
    page = f"Why.\n\n```yaml\na: 1\n\nb: 2\n```\ntext\n{file}```\ny\n```\n"
    assert ops_page.blocks(page) == [
        ops_page.Block("yaml", "Why.", "a: 1\n\nb: 2\n"),
        ops_page.Block("text", "<!-- file: a.txt -->", "x\n"),
        ops_page.Block("", "", "y\n"),
    ]


def test_a_playbook_has_the_files_that_it_names() -> None:
    files = "<!-- file: a.txt -->\n```text\nx\n```\n<!-- file: b.txt -->\n```text\ny\n```\n"
    page = f"{files}One.\n```yaml\n- b.txt\n```\nTwo.\n```yaml\n- none\n```\n"
    assert ops_page.playbooks(page) == [
        ops_page.Playbook("One.", "- b.txt\n", {"b.txt": "y\n"}),
        ops_page.Playbook("Two.", "- none\n", {}),
    ]


def test_roles_are_found_wherever_a_playbook_runs_them() -> None:
    text = """
- hosts: all
  roles: [other.one.role, ftcluster.cluster.a, {role: ftcluster.cluster.b, vars: {b_x: 1}}]
  tasks:
    - ansible.builtin.debug:
    - block:
        - ansible.builtin.import_role: {name: ftcluster.cluster.c, tasks_from: remove.yml}
          vars: {c_x: 1}
"""
    assert ops_page.roles_used(text) == [
        ops_page.RoleUse("a", "main", {}),
        ops_page.RoleUse("b", "main", {"b_x": 1}),
        ops_page.RoleUse("c", "remove", {"c_x": 1}),
    ]


def test_the_page_has_a_playbook_for_each_role_that_it_shows() -> None:
    shown = [{use.role for use in ops_page.roles_used(playbook.text)} for playbook in PLAYBOOKS]
    assert shown == [{"firewall"}, {"virtualenv"}, {"account", "ssh_mesh"}]
    assert all(playbook.title.endswith(".") for playbook in PLAYBOOKS)


@each_playbook
def test_playbooks_name_roles_and_variables_that_there_are(playbook: ops_page.Playbook) -> None:
    for use in ops_page.roles_used(playbook.text):
        entries = options_of(use.role)
        assert use.entry in entries
        options = entries[use.entry]
        assert not set(use.variables) - set(options), f"not in {use.role}'s argument_specs"
        required = {name for name, option in options.items() if option.get("required")}
        assert not required - set(use.variables), f"{use.role} needs these"


@each_playbook
def test_playbooks_pass_the_syntax_check(playbook: ops_page.Playbook, tmp_path: Path) -> None:
    (tmp_path / "playbook.yml").write_text(playbook.text)
    for name, text in playbook.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "hosts.ini").write_text("[nodes]\na ansible_host=192.0.2.1\n")
    done = subprocess.run(
        [str(CONTROL / "ansible-playbook"), "--syntax-check", "-i", "hosts.ini", "playbook.yml"],
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_NOCOLOR": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@each_playbook
def test_files_beside_a_playbook_are_in_the_page(playbook: ops_page.Playbook) -> None:
    named = re.findall(r"playbook_dir }}/([\w.-]+)", playbook.text)
    assert sorted(playbook.files) == sorted(named)


def test_versions_are_those_of_the_stack() -> None:
    lock = (ROOT / "roles/torch_stack/files/native.txt").read_text()
    stack = {line.removesuffix(" \\") for line in lock.splitlines()}
    lists = [text for playbook in PLAYBOOKS for text in playbook.files.values()]
    assert lists
    for text in lists:
        assert not {line.removesuffix(" \\") for line in text.splitlines()} - stack
        assert any(line.startswith("uv==") for line in text.splitlines())


def test_the_settings_shown_are_those_of_the_command_line() -> None:
    text = next(b.text for b in ops_page.blocks(PAGE) if "[ssh_connection]" in b.text)
    shown = configparser.ConfigParser(interpolation=None)
    shown.read_string(text)
    assert {(s, key): shown[s][key] for s in shown.sections() for key in shown[s]} == {
        ("defaults", "forks"): str(runner.FORKS),
        ("defaults", "timeout"): str(runner.TIMEOUT_SECONDS),
        ("ssh_connection", "pipelining"): "true",
        ("ssh_connection", "retries"): str(runner.RETRIES),
        ("ssh_connection", "ssh_args"): runner.SSH_ARGS,
    }


def test_variables_of_the_cluster_are_those_that_playbooks_read() -> None:
    texts = [path.read_text() for path in (ROOT / "playbooks").rglob("*.yml")]
    read = set(re.findall(r"\bftcluster_[a-z_]+", "".join(texts))) - {
        "ftcluster_common",
        "ftcluster_train",
    }
    variables = ops_page.VARIABLES.read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(ftcluster_[a-z_]+)` \|", variables, re.MULTILINE))
    assert rows == read


def test_roles_with_a_way_back_are_named() -> None:
    roles = sorted(path.name for path in (ROOT / "roles").iterdir())
    undone = [role for role in roles if "remove" in options_of(role)]
    words = SINGLE_ROLES.split("## Undoing")[1].split("have an entry point")[0]
    assert re.findall(r"`(\w+)`", words) == undone


def test_the_page_lists_every_role() -> None:
    roles = sorted(path.name for path in (ROOT / "roles").iterdir())
    listed = re.findall(r"\[\w+\]\(\.\./roles/(\w+)/README\.md\)", PAGE)
    assert sorted(listed) == roles
