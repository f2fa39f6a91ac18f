"""From facts and a recipe to a LaunchPlan. Pure functions."""
