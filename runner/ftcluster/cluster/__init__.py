"""The facts of a cluster's hosts, the cluster that setup saves, and the record on its head."""
