"""Search the settings of a training: choose the next attempts and the best result. No I/O."""
