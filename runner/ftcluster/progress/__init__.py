"""The progress of a setup and of a run: its state from events, and its display."""
