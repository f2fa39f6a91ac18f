"""One HTML page about one run or several: what ran where, how it went, why it was this fast."""
