# Apache-2.0 (see LICENSE)
"""What action plugins use of ansible-core that it does not document.

A new version may lack it; tests/unit/plugins/test_private_ansible.py names what it lacks.
"""

from __future__ import annotations

import base64
import os
import re
from typing import Any


def execute(action: Any, command: str, data: bytes = b"", sudoable: bool = True) -> dict[str, Any]:
    """Run a shell command on the host: a dictionary with rc, stdout and stderr.

    With input, Ansible uses no terminal, which would merge stderr into stdout and end lines with
    carriage returns.

    Args:
        sudoable: whether as the user that the task becomes, else as the one that logs in.
    """
    done: dict[str, Any] = action._low_level_execute_command(
        for_any_shell(command), sudoable=sudoable, in_data=data or b"\n"
    )
    return done


def for_any_shell(command: str) -> str:
    """The command as the login shell gets it in single quotes, which may be csh.

    There a quoted text ends with its line, and ! stands for an earlier command.

    >>> for_any_shell("echo a!b")
    'sh -c "$(echo ZWNobyBhIWI= | base64 -d)"'
    """
    if not re.search(r"[\n!]", command):
        return command
    return f'sh -c "$(echo {base64.b64encode(os.fsencode(command)).decode()} | base64 -d)"'


def environment_words(action: Any) -> str:
    """The task's environment as words before a shell command."""
    words: str = action._compute_environment_string()
    return words
