"""Make a LaunchPlan from facts and a recipe. Pure functions."""
