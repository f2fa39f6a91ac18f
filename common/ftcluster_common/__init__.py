"""The contract of the control node and the hosts; both packages carry it. Standard library only."""

__version__ = "0.1.0"  # of both packages, and of the collection (galaxy.yml)
