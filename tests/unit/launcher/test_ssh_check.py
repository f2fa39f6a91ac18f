import os
import subprocess
from pathlib import Path

import pytest

from ftcluster_train.launcher import ssh_check
from ftcluster_train.launcher.ssh_check import Host, same_stack, unreachable

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key verification failed.\r
"""
# It behaves as the file that is named after the address says, and writes down how it was called.
SSH = """\
#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/calls"
[ ! -e "$here/$3.slow" ] || exec sleep 20
[ -e "$here/$3" ] || exit 0
cat "$here/$3" >&2
exit 255
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an `ssh` on PATH that reaches everything unless a file there says more."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def hosts(count: int) -> list[Host]:
    return [Host(f"node{n}", f"10.0.0.{n}") for n in range(1, count + 1)]


def test_hosts_that_answer_are_no_problems(ssh: Path) -> None:
    assert unreachable(hosts(3), "/opt/mesh/ssh_config") == []
    assert sorted((ssh / "calls").read_text().splitlines()) == [
        f"-F /opt/mesh/ssh_config 10.0.0.{n} true" for n in (1, 2, 3)
    ]


def test_nobody_is_asked_where_there_is_no_other_host(ssh: Path) -> None:
    assert unreachable([], "") == []
    assert not (ssh / "calls").exists()


def test_a_changed_host_key_says_what_to_do(ssh: Path) -> None:
    (ssh / "10.0.0.1").write_text(CHANGED)
    (problem,) = unreachable(hosts(2), "c")
    assert problem.startswith("node1 (10.0.0.1): ssh from the head fails: its host key is another")
    assert "run setup; if not, somebody may be answering in its place" in problem


def test_all_hosts_that_fail_come_together_in_their_order(ssh: Path) -> None:
    refused = "ssh: connect to host 10.0.0.3 port 22: Connection refused"
    (ssh / "10.0.0.3").write_text(f"Warning: something else\n{refused}\r\n")
    (ssh / "10.0.0.1").write_text("Permission denied (publickey).\r\n\n")
    assert unreachable(hosts(3), "c") == [
        "node1 (10.0.0.1): ssh from the head fails: Permission denied (publickey).",
        f"node3 (10.0.0.3): ssh from the head fails: {refused}",
    ]


def test_a_failure_without_words(ssh: Path) -> None:
    (ssh / "10.0.0.1").write_text("\n \n")
    assert unreachable(hosts(1), "c") == [
        "node1 (10.0.0.1): ssh from the head fails: without a word"
    ]


def test_a_host_that_says_nothing_is_given_up(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_check, "PROBE_SECONDS", 0.5)
    (ssh / "10.0.0.2.slow").touch()
    assert unreachable(hosts(2)[1:], "c") == [
        "node2 (10.0.0.2): ssh from the head got no answer in time"
    ]


def test_a_stack_that_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    stack = tmp_path / "sta cks" / "native-1"
    (stack / "bin").mkdir(parents=True)

    def there() -> tuple[int, str]:
        command = ["sh", "-c", same_stack(stack)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert there() == (0, "")
    (stack / "bin").rmdir()
    code, said = there()
    assert code == 1
    assert "it does not have native-1, the stack in use on the head: run ftcluster setup" in said


def test_another_node_package_is_told(tmp_path: Path) -> None:
    stack = tmp_path / "native-1"
    (stack / "bin").mkdir(parents=True)
    (stack / "wheels-node_agent.json").write_text('{"ours": "1"}')
    command = ["sh", "-c", same_stack(stack)]
    assert subprocess.run(command, check=False).returncode == 0
    (stack / "wheels-node_agent.json").write_text('{"ours": "2"}')
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "its node package is another one than the head's: run ftcluster setup" in done.stderr
