"""What is collected."""

# They need torch, which the environment of the tests does not have: tests/cluster/test_engine.py
# runs them with the Python of a stack.
collect_ignore = ["engine"]
