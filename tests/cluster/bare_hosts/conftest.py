"""Three Debian 12 hosts without a setup; every test restores this state."""

from collections.abc import Iterator

import pytest

from tests.cluster.control import Control, bare_hosts


@pytest.fixture(scope="package")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    with bare_hosts("bookworm", tmp_path_factory.mktemp("bare_hosts")) as control:
        yield control
