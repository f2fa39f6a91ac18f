"""Ansible: inventories, options that are passed on, and playbooks with their events."""
