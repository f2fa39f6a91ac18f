"""An HTML page about one or more runs: where ranks ran, results, and what limits the speed."""
