"""Make, check and change a cluster."""
