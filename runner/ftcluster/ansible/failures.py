"""Creates errors from Ansible's output for playbooks that failed although no task failed."""

import re

from ftcluster.ansible.ansible_words import hint_of
from ftcluster.errors import FtclusterError

# beginnings of Ansible's messages; a message may continue on the following lines
WARNING = re.compile(r"\[(DEPRECATION )?WARNING\]")
MESSAGE = re.compile(r"\[[A-Z ]+\]|ERROR!|Traceback ")
LABEL = re.compile(r"^(\[ERROR\]:|ERROR!)\s*")
MOST_LINES = 12
ADVICE = (
    "no task failed, so check the inventory's variables, ansible.cfg and the options passed on "
    "to ansible-playbook"
)


def without_warnings(output: str) -> str:
    """Remove Ansible's warnings from its output, so that they do not hide the reason for an error.

    >>> without_warnings("[WARNING]: ansible.cfg is ignored, see\\nhttps://x\\n[ERROR]: no role")
    'no role'
    """
    kept: list[str] = []
    warns = False
    for line in output.splitlines():
        if MESSAGE.match(line):
            warns = bool(WARNING.match(line))
        elif not line.strip():
            warns = False
        if not warns and line.strip():
            kept.append(LABEL.sub("", line.rstrip()))
    return "\n".join(kept)


def failed_without_task(what: str, output: str) -> FtclusterError:
    """Return the error for a playbook that failed although no task failed.

    Args:
        what: command or playbook, with its host if there is only one.
        output: Ansible's output.
    """
    lines = without_warnings(output).splitlines()
    lines = lines or ["Ansible ended without giving a reason", *output.strip().splitlines()]
    shown = [*lines[:MOST_LINES], *(["..."] if len(lines) > MOST_LINES else [])]
    reason = "\n  ".join(shown)
    return FtclusterError(f"{what} failed: {reason}", hint_of(reason) or ADVICE)
