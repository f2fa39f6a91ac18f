"""Ansible: inventories, options that go through, and playbooks with their events."""
