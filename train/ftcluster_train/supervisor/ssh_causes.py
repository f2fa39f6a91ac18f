"""Causes of failed SSH connections from the head, read from what OpenSSH prints.

Pure functions. Standard library only.
"""

import re
from dataclasses import dataclass

SSH_FAILED = 255  # exit code of ssh itself, ssh(1)
SETUP = "ftcluster setup INVENTORY --tags mesh,verify"
OFF = (
    "check that it is on and its sshd is running, and check the network and firewall between it "
    "and the head"
)
SENT = re.compile(r"fingerprint for the (\S+) key sent by the remote host is\s+(SHA256:[\w+/=]+)")


@dataclass(frozen=True)
class Cause:
    """A reason why a run cannot use a host.

    Attributes:
        name: the reason in a few words.
        remedy: advice for users.
        lasting: True if the reason does not pass with time, so that a restart cannot help.
        line: pattern of the line that users should see; "" for the last line.
    """

    name: str
    remedy: str
    lasting: bool = False
    line: str = ""


KEY_CHANGED = Cause(
    "host key changed",
    "if the host was reinstalled or its keys were renewed, remove its old key on the control node "
    f"(ssh-keygen -R ADDRESS), compare the new one, and run {SETUP}; if not, another machine may "
    "be answering at its address",
    lasting=True,
)
KEY_UNKNOWN = Cause(
    "host key unknown",
    f"run {SETUP}: it gives the head the host keys",
    lasting=True,
    line="is known for",
)
NO_KEY = Cause(
    "the head's SSH key is missing or unusable", f"{SETUP} creates it again", lasting=True
)
DENIED = Cause(
    "permission denied",
    "if its sshd_config has AllowUsers or AllowGroups, add the account, and check that the account "
    f"has a shell; otherwise run {SETUP}, which renews the keys",
    lasting=True,
    line="denied",
)
SHELL = Cause(
    "login shell fails", "log in as that account and see what its shell and its profile print"
)
REFUSED = Cause("connection refused", OFF)
NO_ROUTE = Cause("no route", OFF)
TIMEOUT = Cause("timeout", OFF)
CLOSED = Cause(
    "connection closed before the login",
    "the log of its sshd says why (journalctl -u ssh): the host may be booting or have too many "
    "connections at once, or the account may have expired",
)
NO_NAME = Cause("name does not resolve", "correct the name or the head's name server")
OTHER = Cause("unknown cause", f"{OFF}; {SETUP} renews the SSH mesh")
NO_SSH = Cause("no ssh", "install an SSH client on the head", lasting=True)
# not a failure of ssh, which reaches both hosts, see `link_check`
LINK = Cause(
    "link is cut",
    "check cables, switch ports and firewalls between these hosts; ftcluster check connects all "
    "pairs of hosts",
)

# A key that ssh cannot use ends in "Permission denied", and a refused host key in "Host key
# verification failed", so the more specific line comes first.
PATTERNS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key \S+ \S+ revoked|REVOKED HOST KEY",
        KEY_CHANGED,
    ),
    (r"No \S+ host key is known|Host key verification failed", KEY_UNKNOWN),
    (r"Identity file .* not accessible|UNPROTECTED PRIVATE KEY|Load key .*: ", NO_KEY),
    (r"Permission denied|Too many authentication failures|No supported authentication", DENIED),
    (r"Could not resolve hostname", NO_NAME),
    (r"Connection refused", REFUSED),
    (r"No route to host|Network is unreachable|Host is down|Cannot assign requested", NO_ROUTE),
    (r"timed out|Timeout, server", TIMEOUT),
    (r"Connection (?:closed|reset)|closed by remote host|Broken pipe|account has expired", CLOSED),
)


def cause_of(code: int, printed: str) -> Cause:
    """Return why ssh has not run a command.

    Args:
        code: exit code of ssh; if it is not SSH_FAILED, the host's login shell has ended with it.

    >>> cause_of(255, "ssh: connect to host n1 port 22: No route to host").name
    'no route'
    """
    if code != SSH_FAILED:
        return SHELL
    return next((cause for pattern, cause in PATTERNS if re.search(pattern, printed)), OTHER)


def describe(cause: Cause, printed: str) -> str:
    """Return one line for users: the cause, and what ssh or the shell has printed about it."""
    lines = [line.strip() for line in printed.splitlines() if line.strip(" @\r")]
    detail = lines[-1] if lines else "without output"
    if cause == KEY_CHANGED:
        sent = SENT.search(printed)
        shows = f"; it now shows {sent[1]} {sent[2]}" if sent else ""
        revoked = " or was revoked" if "revoked" in printed.lower() else ""
        detail = f"its host key has changed since the last setup{revoked}{shows}"
    elif cause.line:  # other lines may follow
        detail = next((line for line in lines if re.search(cause.line, line)), detail)
    return f"ssh from the head fails ({cause.name}): {detail}"
