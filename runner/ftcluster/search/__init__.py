"""Search settings of a training: choose the settings to try next, and the best result. No I/O."""
