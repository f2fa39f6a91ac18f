"""The cluster nodes' side of ftcluster: supervisor, ranks and the training engine."""

__version__ = "0.1.0"
