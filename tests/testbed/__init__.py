"""Several real hosts on one Linux machine, for tests of a cluster. See README.md beside this file.

Example:
    >>> from tests.testbed import Testbed
    >>> bed = Testbed()
    >>> bed.up(nodes=3)  # doctest: +SKIP
"""

from .api import Testbed
from .settings import Settings
from .shell import TestbedError

__all__ = ["Settings", "Testbed", "TestbedError"]
