"""Events, and files that survive a crash or are not for other users."""
