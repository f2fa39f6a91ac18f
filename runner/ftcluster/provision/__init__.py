"""Setup, teardown and check: the stages of playbooks."""
