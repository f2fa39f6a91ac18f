"""Three Debian 12 hosts that nothing is set up on; every test leaves them so."""

import pytest

from tests.cluster.control import Control


@pytest.fixture(scope="package")
def bare(debian12_hosts: Control) -> Control:
    return debian12_hosts
