"""A folder of a host that nobody but root may touch, to see that nobody else got at it."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.hosts.cluster import Cluster

CANARY = "/usr/local/canary"  # not where teardown is watched for what it leaves
MAKE = f"""
set -e
mkdir -m 0755 {CANARY}
echo secret > {CANARY}/file
chmod 0640 {CANARY}/file
chown ops:shadow {CANARY}/file
"""
LOOK = f"stat -c '%n %u %g %a %h' {CANARY} {CANARY}/*; cat {CANARY}/file"


@contextmanager
def canary(cluster: Cluster, host: str) -> Iterator[str]:
    """Make the folder with a file of another user's; owner, mode and content have to stay."""
    bed = cluster.control.bed
    bed.exec_(host, "sh", "-c", MAKE, check=True)
    try:
        before = bed.exec_(host, "sh", "-c", LOOK, check=True).stdout
        yield CANARY
        assert bed.exec_(host, "sh", "-c", LOOK, check=True).stdout == before
    finally:
        bed.exec_(host, "rm", "-r", CANARY, check=True)
