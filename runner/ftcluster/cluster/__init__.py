"""The facts of a cluster's hosts, and the file that setup saves them in."""
