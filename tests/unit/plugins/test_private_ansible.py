"""What action plugins use of ansible-core without its being documented is still there."""

import inspect

import pytest
from ansible.plugins.action import ActionBase


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
