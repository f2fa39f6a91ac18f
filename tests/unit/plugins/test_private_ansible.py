"""The undocumented parts of ansible-core that action plugins use still exist."""

import inspect
import subprocess

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.ftcluster.cluster.plugins.plugin_utils.private_ansible import (
    for_any_shell,
)

from tests.programs import ROOT


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_low_level_execute_command", {"cmd", "sudoable", "in_data"}),
        ("_compute_environment_string", set()),
        ("_execute_module", {"module_name", "module_args", "task_vars"}),
    ],
)
def test_a_method_takes_what_it_is_given(name: str, arguments: set[str]) -> None:
    signature = inspect.signature(getattr(ActionBase, name))
    signature.bind(ActionBase, **dict.fromkeys(arguments))


@pytest.mark.parametrize("name", ["_VALID_ARGS", "_requires_connection"])
def test_an_attribute_is_read(name: str) -> None:
    assert hasattr(ActionBase, name)


@pytest.mark.parametrize(
    "command",
    [
        "printf '%s' 'it is \"$HOME\" `x`\n\tand!more' \"$A\"; exit 3",
        "cat; printf '%s' '!'",
        "printf '%s' größe",
    ],
)
def test_a_command_is_one_line_without_what_csh_takes_for_its_own(command: str) -> None:
    def run(text: str) -> tuple[int, bytes]:
        done = subprocess.run(
            ["/bin/sh", "-c", text],
            input=b"given",
            env={"A": "b"},
            capture_output=True,
            check=False,
        )
        return done.returncode, done.stdout

    line = for_any_shell(command)
    assert not set(line) & set("\n!")
    assert run(line) == run(command) != (0, b"")
    assert (line == command) == (not set(command) & set("\n!"))


def test_no_action_sends_the_login_shell_another_command() -> None:
    plugins = [*(ROOT / "plugins").rglob("*.py")]
    senders = [path.stem for path in plugins if "_low_level_execute_command" in path.read_text()]
    assert senders == ["private_ansible"]
