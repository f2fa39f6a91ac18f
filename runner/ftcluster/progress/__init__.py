"""The progress of a setup and of a run: computes the state from events and displays it."""
