"""Starting, watching and ending ranks on the hosts. Standard library only."""
