"""The facts of a cluster's hosts, and the file in which setup saves them."""
