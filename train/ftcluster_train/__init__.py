"""The cluster nodes' side of ftcluster: supervisor, ranks and the training engine."""
