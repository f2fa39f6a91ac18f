"""Launch a LaunchPlan and follow its events."""
