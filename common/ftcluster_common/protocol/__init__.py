"""Documents and values that the control node and the hosts exchange."""
