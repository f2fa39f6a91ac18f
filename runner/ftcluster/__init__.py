"""The control node's side of ftcluster: command line, playbooks, plan, launch and progress."""
