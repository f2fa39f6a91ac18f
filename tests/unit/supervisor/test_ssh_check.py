import os
import subprocess
from pathlib import Path

import pytest

from ftcluster_common.protocol.launch import Host
from ftcluster_train.supervisor.ssh_causes import (
    KEY_CHANGED,
    NO_SSH,
    OTHER,
    REFUSED,
    SHELL,
    TIMEOUT,
)
from ftcluster_train.supervisor.ssh_check import (
    HostFailure,
    refusals,
    same_stack,
    unreached_hosts,
)

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key verification failed.\r
"""
# The program behaves as the file named after the address says, and records its calls.
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
    """Make a folder with an `ssh` on PATH that reaches every host unless a file says otherwise."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def hosts(count: int) -> list[Host]:
    return [Host(f"node{n}", f"10.0.0.{n}") for n in range(1, count + 1)]


def test_hosts_that_answer_are_no_problems(ssh: Path) -> None:
    assert refusals(hosts(3), "/opt/mesh/ssh_config") == []
    assert sorted((ssh / "calls").read_text().splitlines()) == [
        f"-F /opt/mesh/ssh_config 10.0.0.{n} true" for n in (1, 2, 3)
    ]
    # a banner in another encoding is not a failure
    words = "Zugriff verweigert für Unbefugte".encode("latin-1")
    (ssh / "10.0.0.1").write_bytes(words + b"\nConnection closed \xff\n")
    (refusal,) = refusals(hosts(1), "c")
    assert refusal.reason.endswith(": Connection closed \N{REPLACEMENT CHARACTER}")


def test_all_hosts_that_fail_come_together_in_their_order(ssh: Path) -> None:
    refused = "ssh: connect to host 10.0.0.3 port 22: Connection refused"
    (ssh / "10.0.0.1").write_text(CHANGED)
    (ssh / "10.0.0.2.slow").touch()
    (ssh / "10.0.0.3").write_text(f"Warning: something else\n{refused}\r\n")
    (ssh / "10.0.0.4").write_text("\n \n")
    everyone = hosts(5)
    changed, late, *others = refusals(everyone, "c", limit_seconds=0.5)
    assert changed.host == everyone[0]
    assert "its host key has changed" in changed.reason
    assert (changed.cause, changed.lasting) == (KEY_CHANGED, True)
    assert (late.host, "0.5 s" in late.reason, late.cause) == (everyone[1], True, TIMEOUT)
    assert others == [
        HostFailure(
            everyone[2], f"ssh from the head fails (connection refused): {refused}", REFUSED
        ),
        HostFailure(everyone[3], "ssh from the head fails (unknown cause): without output", OTHER),
    ]


def test_a_host_is_reached_if_its_login_shell_runs_a_command(ssh: Path) -> None:
    (ssh / "ssh").write_text(
        "#!/bin/sh\n"
        'case $3 in 10.0.0.1) exec sh -c "$4";; 10.0.0.2) exit 0;; 10.0.0.3) exec sleep 20;; esac\n'
        "echo This account is currently not available.; exit 1\n"
    )
    silent, slow, locked = unreached_hosts(hosts(4), "c", 0.5)
    assert (silent.host, silent.cause) == (hosts(4)[1], SHELL)
    assert (slow.host, slow.cause) == (hosts(4)[2], TIMEOUT)
    assert (locked.host, locked.cause) == (hosts(4)[3], SHELL)


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
    assert "its node package differs from the head's: run ftcluster setup" in done.stderr


def test_a_head_without_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusals(hosts(1), "c") == [
        HostFailure(hosts(1)[0], "the head has no ssh; install an SSH client there", NO_SSH)
    ]
