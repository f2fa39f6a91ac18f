"""Programs on the head that start, watch and end the ranks of a run."""
