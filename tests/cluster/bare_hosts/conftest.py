"""Several real hosts that nothing has been set up on."""

from pathlib import Path

import pytest

from tests.cluster.testbeds import bare, needs_root, open_control

__all__ = ["bare", "open_control"]

# There is one testbed at a time, and the others share theirs.
FIRST = "test_debian13.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs_root(items, Path(__file__).parent, lambda item: item.path.name != FIRST)
