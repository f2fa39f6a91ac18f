"""The control node's side of ftcluster: command line, playbooks, plan, launch and progress."""

__version__ = "0.1.0"
