"""An HTML page about runs: the placement of ranks, the results and the limits of the speed."""
