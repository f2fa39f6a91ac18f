"""Programs on the head: they start, watch and end the ranks of a run."""
