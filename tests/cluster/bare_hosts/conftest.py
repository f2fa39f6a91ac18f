"""Several real hosts that nothing has been set up on."""

from pathlib import Path

import pytest

from tests.cluster.testbeds import bare, open_control, skip_without_root, sort_tests

__all__ = ["bare", "open_control"]

# There is one testbed at a time, and the others share theirs.
FIRST = "test_debian13.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_tests(items, Path(__file__).parent, lambda item: item.path.name != FIRST)
    skip_without_root(items, Path(__file__).parent)
