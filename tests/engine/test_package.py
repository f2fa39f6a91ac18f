"""The tests run against the installed package."""

import sys
from pathlib import Path

import pytest

import ftcluster_train


def test_the_package_is_the_installed_one(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getini("pythonpath"):
        pytest.skip("the checkout's package is tested: ./test engine tests the installed one")
    assert Path(sys.prefix) in Path(ftcluster_train.__file__).parents
