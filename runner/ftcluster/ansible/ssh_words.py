"""Messages for the reasons why ssh does not connect to a host."""

import re

UNKNOWN = "its host key is not known here"
CHANGED = "its host key differs from the key known here"
REFUSED = "its host key is not known here, or differs from the known key"
FAILED = "Host key verification failed"
OFFENDING = re.compile(r"Offending \S+ key in (\S+:\d+)")
SENT = re.compile(r"fingerprint for the (\S+) key sent by the remote host is\s+(SHA256:[\w+/=]+)")
# Ansible's message with a password; it hides ssh's own message
VIA = "Failed to connect to the host via ssh: "
# messages of ssh about a jump host, or of the shell of a ProxyCommand
ON_THE_WAY = re.compile(
    r"ssh: .*|channel \d+: open failed: .*|.*: Permission denied \(.*|.*: not found"
)
BEHIND = "by UNKNOWN port 65535"  # ssh prints this for a connection through a pipe
TURNED_AWAY = re.compile(r"(?:kex|ssh)_exchange_identification: [^\r\n]*")
# Ansible's messages about a host whose connection of an earlier command is still open: the host
# prints nothing, or the connection breaks
SILENT = re.compile(r"Timeout \((\d+)s\) waiting for privilege escalation prompt")
BROKEN = "Data could not be sent to remote host"
WITH_PASSWORD = "not possible because Host Key checking is enabled"


def of_connection(message: str) -> str:
    """Return the reason why ssh did not connect, as one line; "" for any other failure.

    >>> of_connection("Task failed: Failed to connect to the host via ssh: ssh: No route to host")
    'ssh does not connect: ssh: No route to host'
    """
    lines = message.rpartition(VIA)[2].split("\n") if VIA in message else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"ssh does not connect: {last}" if last else ""


def of_silence(message: str) -> str:
    """Return the reason why a host with an open connection did not respond, as one line, or "".

    >>> of_silence("Timeout (32s) waiting for privilege escalation prompt: ")[:30]
    'no response within 32 s over a'
    """
    if match := SILENT.search(message):
        return (
            f"no response within {match[1]} s over an open SSH connection: the host is off or cut "
            "off, or sudo hangs there"
        )
    return "the open SSH connection broke: the host is off or cut off" if BROKEN in message else ""


def of_host_key(message: str) -> str:
    """Return the reason why a key was refused, as one line; "" for any other failure.

    >>> of_host_key("Failed to connect to the host via ssh: Host key verification failed.")
    'its host key is not known here'
    """
    if "HOST IDENTIFICATION HAS CHANGED" in message:
        sent, offending = SENT.search(message), OFFENDING.search(message)
        shows = f", the host sent {sent[1]} {sent[2]}" if sent else ""
        where = offending[1] if offending else "known_hosts"
        return (
            f"{CHANGED}{shows}: the host was reinstalled, or somebody may intercept the "
            f"connection; the known key is in {where}; remove it only if you know why the key "
            "differs"
        )
    if "REVOKED HOST KEY" in message:
        return f"{CHANGED}: it is revoked"
    if FAILED in message:
        return UNKNOWN
    return REFUSED if WITH_PASSWORD in message else ""


def of_sshd(message: str) -> str:
    """Return the reason why a connection ended before the login, as one line, or "".

    With a jump host, ssh prints the problem of the first or second hop before the message about the
    end. The problem may be missing: with ControlPersist, ssh drops the output of a ProxyCommand.

    >>> of_sshd("kex_exchange_identification: Connection closed by remote host\\r")[-33:]
    'Connection closed by remote host)'
    """
    closed = TURNED_AWAY.search(message)
    before = message[: closed.start()].rpartition(VIA)[2].splitlines() if closed else []
    for line in reversed(before):
        if ON_THE_WAY.fullmatch(line):
            fails = "cannot reach it" if line.startswith("channel") else "cannot be reached"
            return f"the jump host or proxy in front of this host {fails}: {line}"
    if closed and BEHIND in message:
        return (
            "the jump host or proxy in front of this host closed the connection before the login: "
            "it is off, refuses this user, cannot reach the host, or has too many connections at "
            "once (raise MaxStartups in its sshd_config, or pass --forks 5); run ssh by hand to "
            f"find out which ({closed[0]})"
        )
    return (
        "sshd on this host, or on a jump host in front of it, closed the connection before the "
        "login: it may have too many connections at once (raise MaxStartups in the jump host's "
        f"sshd_config, or pass --forks 5), or refuse this machine's address ({closed[0]})"
        if closed
        else ""
    )
