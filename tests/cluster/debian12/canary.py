"""A folder on a host that only root may change, which proves that no other account changed it."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.control import Control

CANARY = "/usr/local/canary"  # outside of the folders in which teardown is checked for remains
MAKE = f"""
set -e
mkdir -m 0755 {CANARY}
echo secret > {CANARY}/file
chmod 0640 {CANARY}/file
chown ops:shadow {CANARY}/file
"""
LOOK = f"stat -c '%n %u %g %a %h' {CANARY} {CANARY}/*; cat {CANARY}/file"


@contextmanager
def canary(control: Control, host: str) -> Iterator[str]:
    """Make the folder with a file of another user; owner, mode and content must not change."""
    with control.changed({host: (MAKE, f"rm -r {CANARY}")}):
        before = control.shell(host, LOOK)
        yield CANARY
        assert control.shell(host, LOOK) == before
