"""What a person sees of a setup and of a run: state from events, and two ways to show it."""
