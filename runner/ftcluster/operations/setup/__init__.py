"""Set up, check and change a cluster."""
