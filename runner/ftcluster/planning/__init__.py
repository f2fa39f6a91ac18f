"""Make a LaunchPlan from the facts of hosts and a recipe. Pure functions only."""
