"""The reasons for failed playbooks, in real playbooks of Ansible."""

from pathlib import Path

import pytest

from ftcluster.ansible.failures import ADVICE, failed_without_task, without_warnings
from ftcluster.ansible.inventory_errors import unreadable
from ftcluster.ansible.playbook import PlaybookOutcome, TaskEvent, read_event, run_playbook
from ftcluster.launch import runs
from ftcluster.launch.run_hosts import UNREACHABLE, RunHosts
from ftcluster.progress.state import SetupProgress
from tests.unit.ansible.test_playbook import raw

SECTIONS = """
- hosts: all
  gather_facts: false
  tasks:
    - block:
        - {name: Look, ansible.builtin.fail: {msg: there is no previous stack}}
      always:
        - {name: Release, ansible.builtin.debug: {msg: released}}
"""
INVENTORY = "node1 ansible_connection=local\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Yield the current folder, whose ansible.cfg Ansible ignores with a warning."""
    project = tmp_path / "project"
    project.mkdir()
    project.chmod(0o777)
    (project / "ansible.cfg").write_text("[defaults]\nforks = 5\n")
    (project / "hosts").write_text(INVENTORY)
    monkeypatch.chdir(project)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    return project


@pytest.mark.parametrize("rescued", [False, True])
def test_a_task_that_always_runs_does_not_hide_the_failure(folder: Path, rescued: bool) -> None:
    playbook = folder / "playbook.yml"
    playbook.write_text(SECTIONS.replace("always:", "rescue:") if rescued else SECTIONS)
    progress = SetupProgress()
    outcome = run_playbook(
        str(playbook), (folder / "hosts",), {}, progress.add, time_limit_seconds=100
    )
    progress.settle(outcome.failed_hosts)
    failed = progress.hosts["node1"].failed
    assert (outcome.state, failed) == (
        ("done", "") if rescued else ("failed", "there is no previous stack")
    )


def test_a_warning_about_ansible_cfg_does_not_hide_the_reason(folder: Path) -> None:
    playbook = folder / "playbook.yml"
    playbook.write_text("- hosts: all\n  roles: [{role: missing_role}]\n")
    outcome = run_playbook(
        str(playbook), (folder / "hosts",), {}, lambda _: None, time_limit_seconds=100
    )
    assert "world writable" in outcome.output  # otherwise the test proves nothing
    error = failed_without_task("setup", outcome.output)
    first = error.message.splitlines()[0]
    assert first.startswith("setup failed: ")
    assert "missing_role" in first
    assert "world writable" not in str(error)
    assert error.hint == ADVICE


def test_if_ansible_gives_only_warnings_they_are_shown() -> None:
    warning = "[WARNING]: x is\ndeprecated"
    assert without_warnings(warning) == ""
    assert "deprecated" in failed_without_task("check", warning).message
    assert "without giving a reason" in failed_without_task("check", "").message


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Task failed: Timeout (32s) waiting for privilege escalation prompt: ",
         "no response within 32 s"),
        ('Task failed: Data could not be sent to remote host "198.18.0.10". Make sure this host '
         "can be reached over ssh: mux_client_request_session: read from master failed: Broken "
         "pipe", "the open SSH connection broke"),
    ],
)  # fmt: skip
def test_a_head_without_power_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, message: str, reason: str
) -> None:
    """Ansible's message about a host that is off while an earlier connection is open."""
    event = read_event(raw("runner_on_unreachable", res={"msg": message}))
    assert isinstance(event, TaskEvent)
    outcome = PlaybookOutcome("failed", "", (event,))
    monkeypatch.setattr(runs, "play_on", lambda *_, **__: outcome)
    hosts = RunHosts((Path("/i.ini"),), ("n1",), "", "/opt/ftcluster")
    with pytest.raises(runs.FtclusterError) as caught:
        runs.list_runs(hosts)
    assert caught.value.message.startswith(f"n1 does not answer: {reason}")
    assert "Task failed" not in caught.value.message
    assert caught.value.hint == UNREACHABLE


def test_a_warning_after_the_reason_does_not_replace_it() -> None:
    stderr = "the plugin ended early\n[WARNING]: ansible.cfg is ignored, see\nhttps://page\n"
    error = unreadable((Path("hosts.ini"),), stderr, 1)
    assert error.message == "hosts.ini: the plugin ended early"
    only = unreadable((Path("hosts.ini"),), "[WARNING]: ansible.cfg is ignored\n", 4)
    assert "exit code 4" in only.message
