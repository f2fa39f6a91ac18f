"""Injects faults into long trainings, and checks what becomes of them: `python -m tests.faults`."""
