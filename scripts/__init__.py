"""Programs for contributors; see CONTRIBUTING.md."""
