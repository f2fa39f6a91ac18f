"""Launches a LaunchPlan and follows its events."""
