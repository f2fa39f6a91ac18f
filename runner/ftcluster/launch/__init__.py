"""Launch a LaunchPlan, follow the run's events, and read and stop runs."""
