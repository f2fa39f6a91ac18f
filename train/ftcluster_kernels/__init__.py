"""Functions that run faster here than in torch; they know no model and change nothing."""
