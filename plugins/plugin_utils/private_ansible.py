# Apache-2.0 (see LICENSE)
"""What action plugins use of ansible-core that it does not document.

A new version may lack it; tests/unit/plugins/test_private_ansible.py names what it lacks.
"""

from __future__ import annotations

from typing import Any


def execute(action: Any, command: str, data: bytes = b"", sudoable: bool = True) -> dict[str, Any]:
    """Run a shell command on the host: a dictionary with rc, stdout and stderr.

    With input, Ansible uses no terminal, which would merge stderr into stdout and end lines with
    carriage returns.

    Args:
        sudoable: whether as the user that the task becomes, else as the one that logs in.
    """
    done: dict[str, Any] = action._low_level_execute_command(
        command, sudoable=sudoable, in_data=data or b"\n"
    )
    return done


def environment_words(action: Any) -> str:
    """The task's environment as words before a shell command."""
    words: str = action._compute_environment_string()
    return words
