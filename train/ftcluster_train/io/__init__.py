"""Input and output of the ranks' programs: events, files, processes and state of the host."""
