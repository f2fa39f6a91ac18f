# Apache-2.0 (see LICENSE)
"""The undocumented parts of ansible-core that action plugins use.

A new version may lack some parts; tests/unit/plugins/test_private_ansible.py names them.
"""

from __future__ import annotations

import base64
import os
import re
from typing import Any


def execute(action: Any, command: str, data: bytes = b"", sudoable: bool = True) -> dict[str, Any]:
    """Run a shell command on the host and return a dictionary with rc, stdout and stderr.

    If `data` is not empty, Ansible uses no terminal. A terminal would merge stderr into stdout and
    end lines with carriage returns.

    Args:
        sudoable: True to run as the task's become user, False as the login user.
    """
    done: dict[str, Any] = action._low_level_execute_command(
        for_any_shell(command), sudoable=sudoable, in_data=data or b"\n"
    )
    return done


def for_any_shell(command: str) -> str:
    """Encode a command so that any login shell, even csh, can run it in single quotes.

    In csh, a quoted text cannot contain a line break, and ! recalls an earlier command.

    >>> for_any_shell("echo a!b")
    'sh -c "$(echo ZWNobyBhIWI= | base64 -d)"'
    """
    if not re.search(r"[\n!]", command):
        return command
    return f'sh -c "$(echo {base64.b64encode(os.fsencode(command)).decode()} | base64 -d)"'


def environment_words(action: Any) -> str:
    """Return the environment variables of the task as a prefix for a shell command."""
    words: str = action._compute_environment_string()
    return words
