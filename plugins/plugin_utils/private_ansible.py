# Apache-2.0 (see LICENSE)
"""What action plugins use of ansible-core that it does not document.

A new version may lack it; tests/unit/plugins/test_private_ansible.py names what it lacks.
"""

from __future__ import annotations


def execute(action, command, data=b"", sudoable=True):
    """Run a shell command on the host: a dictionary with rc, stdout and stderr.

    With input, Ansible uses no terminal, which would merge stderr into stdout and end lines with
    carriage returns.

    Args:
        sudoable: whether as the user that the task becomes, else as the one that logs in.
    """
    return action._low_level_execute_command(command, sudoable=sudoable, in_data=data or b"\n")


def environment_words(action):
    """The task's environment as words before a shell command."""
    return action._compute_environment_string()
