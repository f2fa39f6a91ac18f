import contextlib
import getpass
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ansible_runner
import pytest

from ftcluster.ansible import playbook
from ftcluster.ansible.playbook import TaskEvent, read_event, run_playbook
from ftcluster.ansible.processes import descendants, end_descendants, is_running
from ftcluster.cli.connection import ask_passwords
from ftcluster.cli.process import ended_in_order


def raw(event: str, **data: object) -> dict[str, object]:
    base = {"play": "Stack", "task": "Install", "host": "n1", "resolved_action": "a.b.command"}
    return {"event": event, "event_data": {**base, **data}}


RC = "non-zero return code"


@pytest.mark.parametrize(
    ("name", "data", "kind", "message"),
    [
        ("runner_on_ok", {"res": {"changed": False, "msg": "x"}}, "ok", ""),
        ("runner_on_ok", {"res": {"changed": True}}, "changed", ""),
        ("runner_on_ok", {"resolved_action": "ansible.builtin.debug", "res": {"msg": "x"}},
         "ok", "x"),
        ("runner_on_failed", {"ignore_errors": True, "res": {"msg": "no"}}, "ok", ""),
        ("runner_on_failed", {"res": {"msg": RC, "stderr": "1\n2\n3\n4\n5\nno space"}},
         "failed", f"{RC}\n2\n3\n4\n5\nno space"),
        ("runner_on_failed",
         {"res": {"results": [{"failed": False, "msg": "fine"}, {"failed": True, "msg": "bad"}]}},
         "failed", "bad"),
        ("runner_on_unreachable", {"res": {}}, "unreachable", "failed without output"),
        ("runner_on_skipped", {"res": {}}, "skipped", ""),
        ("playbook_on_task_start", {}, "task", ""),
    ],
)  # fmt: skip
def test_events(name: str, data: dict[str, Any], kind: Any, message: str) -> None:
    event = read_event(raw(name, **data))
    assert event is not None
    assert (event.kind, event.message) == (kind, message)
    assert (event.stage, event.task, event.host) == ("stack", "Install", "n1")
    assert event.action == data.get("resolved_action", "a.b.command")
    assert event.result == (data["res"] if kind in ("ok", "changed") else {})


def test_a_failure_of_any_size_and_a_diff_are_shown() -> None:
    event = read_event(raw("runner_on_failed", res={"msg": "x" * 5000 + "\ny" * 5000}))
    assert event is not None
    first, *others = event.message.splitlines()
    assert first == "x" * 4000 + " ..."
    assert others == ["y"] * 199 + ["... and 4801 more lines"]
    # the text of a diff is an event
    text = "\x1b[31m--- before: /etc/a\x1b[0m\r\n+++ after: /etc/a\r\n+x\r\n\r\n"
    event = read_event({**raw("runner_on_file_diff", diff=[]), "stdout": text})
    assert event is not None
    assert (event.kind, event.host, event.task) == ("diff", "n1", "Install")
    assert event.message == "--- before: /etc/a\n+++ after: /etc/a\n+x"
    assert read_event({**raw("runner_on_file_diff", diff=[]), "stdout": "\r\n"}) is None
    assert read_event({"event": "verbose", "stdout": "hello"}) is None
    reported = {"event": "verbose", "stdout": "progress | n1 | sending: 1 of 2\r\n"}
    assert read_event(reported) == TaskEvent("progress", "", host="n1", message="sending: 1 of 2")


def parent_of_a_child(script: str) -> "subprocess.Popen[str]":
    """Start a process whose script has started a child."""
    begin = (
        "import os, signal, subprocess, sys, time\n"
        "def start():\n"
        "    sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "    return subprocess.Popen(sleep, start_new_session=True).pid\n"
    )
    command = [sys.executable, "-c", f"{begin}{script}\nprint('up', flush=True)\ntime.sleep(60)"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    return parent


def test_processes_are_ended_also_in_sessions_of_their_own() -> None:
    with parent_of_a_child("start()") as parent:
        [child] = descendants(parent.pid)
        assert {parent.pid, child} <= set(descendants(os.getpid()))
        end_descendants()
    assert not is_running(child)


def test_what_a_process_starts_as_it_ends_is_ended_too() -> None:
    script = "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'%d' % start()), sys.exit()))"
    with parent_of_a_child(script) as parent:
        end_descendants()
        child = parent.communicate()[0]
    assert not Path(f"/proc/{int(child)}").exists()


def write_playbook(folder: Path, script: str) -> tuple[str, Path]:
    """Write a playbook of one task that runs a script here, and an inventory for it."""
    path, inventory = folder / "slow.yml", folder / "inventory.ini"
    path.write_text(
        "- name: Slow\n  hosts: all\n  gather_facts: false\n  tasks:\n"
        f"    - name: Wait\n      ansible.builtin.command: sh -c '{script}; echo {folder}'\n"
    )
    python = f"ansible_python_interpreter={sys.executable}"
    inventory.write_text(f"localhost ansible_connection=local {python}\n")
    return str(path), inventory


def commands_with(words: str) -> list[bytes]:
    """Return the command lines of all processes that contain these words."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            commands.append((folder / "cmdline").read_bytes())
    return [command for command in commands if words.encode() in command]


def test_a_playbook_that_takes_too_long_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, inventory = write_playbook(tmp_path, "sleep 300")
    events: list[TaskEvent] = []

    def clock() -> float:
        late = any(event.kind == "started" for event in events)
        return time.monotonic() + (100 if late else 0)

    # the limit passes as soon as the task runs, even if Ansible starts slowly
    monkeypatch.setattr(playbook, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    outcome = run_playbook(path, (inventory,), {}, events.append, time_limit_seconds=100)
    assert outcome.state == "timeout", outcome.output
    assert events[-1].kind == "started"
    assert commands_with(f"echo {tmp_path}") == []


# three secrets, and a word of the settings
LOOKED_FOR = (b"in-the-environment", b"among-variables", b"the-answer", b"pexpect")


def test_no_secret_is_in_a_file_at_any_time_of_a_playbook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal at any moment therefore leaves no secret in a file."""
    # a short path, because Ansible 2.21 has a socket below TMPDIR whose path may have 107
    # characters
    for variable, name in {"XDG_RUNTIME_DIR": "run", "TMPDIR": "t", "HOME": "home"}.items():
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("HF_TOKEN", "in-the-environment")
    monkeypatch.setattr(getpass, "getpass", lambda _: "the-answer")
    path, inventory = write_playbook(tmp_path, "echo {{ planted | length }} >&2; sleep 1; exit 3")
    seen: set[bytes] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.002):
            for folder, _, names in os.walk(tmp_path):
                for name in names:
                    file = Path(folder, name)
                    with contextlib.suppress(OSError):
                        if stat.S_ISREG(file.lstat().st_mode):
                            text = file.read_bytes()
                            seen.update(word for word in LOOKED_FOR if word in text)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with ask_passwords({"--ask-become-pass": True, "--ask-vault-pass": True}) as passwords:
            outcome = run_playbook(
                path, (inventory,), {"planted": "among-variables"}, lambda _: None,
                options=passwords, time_limit_seconds=100,
            )  # fmt: skip
    finally:
        ended.set()
        looking.join()
    assert outcome.state == "failed", outcome.output
    assert outcome.failures, outcome.output
    (failure,) = outcome.failures
    assert (failure.kind, failure.message.splitlines()[1:]) == ("failed", ["15"])
    assert not outcome.unreachable
    assert seen == {b"pexpect"}, "its settings and nothing else"
    assert list((tmp_path / "run").iterdir()) == []


def test_ansible_ends_with_the_command_that_is_killed(tmp_path: Path) -> None:
    running = tmp_path / "running"
    path, inventory = write_playbook(
        tmp_path, f"touch {running}; while [ -e {running} ]; do sleep 0.1; done"
    )
    program = (
        "import sys; from pathlib import Path; from ftcluster.ansible.playbook import run_playbook;"
        "run_playbook(sys.argv[1], [Path(sys.argv[2])], {}, print, time_limit_seconds=100)"
    )
    argv = [sys.executable, "-c", program, path, str(inventory)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        while not running.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    while commands_with(path):  # ansible-playbook and its workers still run
        time.sleep(0.05)
    running.unlink()


def test_a_signal_in_the_midst_of_its_start_ends_a_playbook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, inventory = write_playbook(tmp_path, "sleep 300")
    start, threads = ansible_runner.run_async, threading.active_count()

    def signalled(**words: Any) -> Any:
        started = start(**words)
        os.kill(os.getpid(), signal.SIGTERM)
        return started

    monkeypatch.setattr(ansible_runner, "run_async", signalled)
    with pytest.raises(SystemExit) as ended, ended_in_order():
        run_playbook(path, (inventory,), {}, lambda _: None, time_limit_seconds=100)
    assert ended.value.code == 128 + signal.SIGTERM
    assert threading.active_count() == threads
    assert [pid for pid in descendants(os.getpid()) if is_running(pid)] == []


def test_a_playbook_that_is_cancelled_while_it_is_silent_is_ended_at_once(tmp_path: Path) -> None:
    running = tmp_path / "running"
    path, inventory = write_playbook(tmp_path, f"touch {running}; sleep 300")
    cancelled_at = 0.0

    def cancelled() -> bool:
        # some time after the last event, when Ansible prints nothing more
        return bool(cancelled_at) and time.monotonic() > cancelled_at

    def tick() -> None:
        nonlocal cancelled_at
        if not cancelled_at and running.exists():
            cancelled_at = time.monotonic() + 0.5

    outcome = run_playbook(
        path, (inventory,), {}, lambda _event: None,
        on_tick=tick, cancelled=cancelled, time_limit_seconds=100,
    )  # fmt: skip
    assert time.monotonic() - cancelled_at < 3
    assert outcome.state == "stopped", outcome.output
    assert commands_with(f"echo {tmp_path}") == []
    assert [pid for pid in descendants(os.getpid()) if is_running(pid)] == []


OPEN_FILES = """
- name: Open files
  hosts: all
  gather_facts: false
  tasks:
    - name: Set facts of each host several times
      ansible.builtin.set_fact:
        any: "{{ item }}"
        cacheable: true
      loop: [1, 2, 3]
    - name: Count
      ansible.builtin.debug:
        msg: "{{ lookup('ansible.builtin.pipe', 'ls /proc/$PPID/fd | wc -l') }}"
"""


def test_what_ansible_has_open_does_not_grow_with_the_hosts(tmp_path: Path) -> None:
    (path := tmp_path / "p.yml").write_text(OPEN_FILES)
    found = []
    for hosts in (1, 15):
        inventory = tmp_path / f"{hosts}.ini"
        lines = [f"host{number} ansible_connection=local" for number in range(hosts)]
        inventory.write_text("\n".join([*lines, ""]))
        counts: list[int] = []

        def receive(event: TaskEvent, counts: list[int] = counts) -> None:
            if event.kind == "ok" and event.task == "Count":
                counts.append(int(event.message))

        options = ("--forks", "1")
        outcome = run_playbook(
            str(path), (inventory,), {}, receive, options=options, time_limit_seconds=100
        )
        assert (outcome.state, len(counts)) == ("done", hosts), outcome.output
        found.append(max(counts))
    assert found[1] < found[0] + 15, found
