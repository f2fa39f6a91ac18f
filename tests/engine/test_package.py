"""What is tested here is what was installed."""

import os
from pathlib import Path

import pytest

import ftcluster_train


def test_the_package_is_the_installed_one() -> None:
    where = os.environ.get("FTCLUSTER_INSTALLED")
    if not where:
        pytest.skip("only the cluster layer says where the package is installed")
    assert Path(where) in Path(ftcluster_train.__file__).resolve().parents
