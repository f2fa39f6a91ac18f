"""Injects faults into long trainings, and checks the outcome: `python -m tests.faults`."""
