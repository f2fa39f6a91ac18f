"""From a LaunchPlan to ranks at work on the hosts, and back to their events."""
