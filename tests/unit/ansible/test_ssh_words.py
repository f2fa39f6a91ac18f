from pathlib import Path

import pytest

from ftcluster.ansible.host_keys import Met, store
from ftcluster.ansible.ssh_words import (
    CHANGED,
    REFUSED,
    UNKNOWN,
    of_connection,
    of_host_key,
    of_sshd,
)

CHANGED_KEY = (
    "Failed to connect to the host via ssh: @@@@@@@@@@@\r\n"
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
    "The fingerprint for the ED25519 key sent by the remote host is\n"
    "SHA256:N8oO4YzZWg55+E/NNLcOHj5qC82Leg4d1qre8dJ9E2c.\r\n"
    "Add correct host key in /home/ops/.ssh/known_hosts to get rid of this message.\r\n"
    "Offending RSA key in /home/ops/.ssh/known_hosts:12\r\n"
    "Host key for 198.18.0.10 has changed and you have requested strict checking.\r\n"
    "Host key verification failed."
)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (CHANGED_KEY, "ssh does not connect: Host key verification failed."),
        ("Task failed: Failed to connect to the host via ssh: ops@h: Permission denied (password).",
         "ssh does not connect: ops@h: Permission denied (password)."),
        ("Failed to create temporary directory. In some cases, you may have been able to "
         "authenticate and did not have permissions on the target directory.", ""),
    ],
)  # fmt: skip
def test_why_ssh_did_not_connect(message: str, reason: str) -> None:
    assert of_connection(message) == reason


def test_a_changed_key_names_what_to_look_at() -> None:
    said = of_host_key(CHANGED_KEY)
    assert said.startswith(CHANGED)
    assert "SHA256:N8oO4YzZWg55+E/NNLcOHj5qC82Leg4d1qre8dJ9E2c:" in said
    assert "/home/ops/.ssh/known_hosts:12;" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("No ED25519 host key is known for h.\r\nHost key verification failed.", UNKNOWN),
        ("@ WARNING: REVOKED HOST KEY DETECTED! @", f"{CHANGED}: it is revoked"),
        ("Using a SSH password instead of a key is not possible because Host Key checking is "
         "enabled. Please add this host's fingerprint", REFUSED),
        ("ssh: connect to host h port 22: Connection refused", ""),
    ],
)  # fmt: skip
def test_other_words_of_ssh(message: str, said: str) -> None:
    assert of_host_key(message) == said


# messages of OpenSSH 9.2 and 7.4 behind a jump host, for a network that resets, and for a host that
# is off
@pytest.mark.parametrize(
    ("message", "turned_away"),
    [
        ("Failed to connect to the host via ssh: kex_exchange_identification: Connection closed by "
         "remote host\r\nConnection closed by UNKNOWN port 65535", True),
        ("ssh_exchange_identification: Connection closed by remote host", True),
        ("kex_exchange_identification: read: Connection reset by peer\r\n", True),
        ("ssh: connect to host 198.18.0.11 port 22: No route to host", False),
    ],
)  # fmt: skip
def test_an_sshd_with_too_many_connections(message: str, turned_away: bool) -> None:
    said = of_sshd(message)
    assert ("MaxStartups" in said) == turned_away
    assert ("is off, refuses this user, cannot reach" in said) == ("65535" in message)
    assert "\n" not in said


# OpenSSH 9.2 without ControlPersist, which would drop these messages
CLOSED = (
    "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN"
)


@pytest.mark.parametrize(
    ("line", "fails"),
    [
        ("ssh: Could not resolve hostname bastion: Name or service not known", "cannot be reached"),
        ("ssh: connect to host 203.0.113.9 port 22: Connection timed out", "cannot be reached"),
        ("ops@bastion: Permission denied (publickey).", "cannot be reached"),
        ("/bin/bash: line 1: exec: nc: not found", "cannot be reached"),
        ("channel 0: open failed: connect failed: No route to host", "cannot reach it"),
        ("channel 0: open failed: administratively prohibited: open failed", "cannot reach it"),
    ],
)
def test_a_jump_host_that_does_not_lead_to_the_host(line: str, fails: str) -> None:
    end = f"stdio forwarding failed\r\n{CLOSED}" if line.startswith("channel") else CLOSED
    message = f"Task failed: Failed to connect to the host via ssh: Welcome!\r\n{line}\r\n{end}"
    said = f"the jump host or proxy in front of this host {fails}: {line}"
    assert of_sshd(message) == of_sshd(message.replace("Welcome!\r\n", "")) == said


def test_keys_are_added_where_ssh_looks_for_them(tmp_path: Path) -> None:
    file = tmp_path / ".ssh/known_hosts"
    keys = [Met(name, name, f"{name} ssh-ed25519 AAAA\n", "", file) for name in "ab"]
    store(keys[:1])
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(file.read_text().rstrip())  # an editor may omit the last line end
    store(keys[1:])
    assert file.read_text() == "a ssh-ed25519 AAAA\nb ssh-ed25519 AAAA\n"
