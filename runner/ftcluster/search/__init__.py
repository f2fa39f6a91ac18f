"""Search for the best settings of a training run: choose what to try next, and the best. No I/O."""
