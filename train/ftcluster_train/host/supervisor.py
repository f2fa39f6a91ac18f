"""Start `ftcluster_train.supervisor.supervisor` by the name that control nodes use.

Control nodes and hosts may have different versions of ftcluster, so a program that a control node
starts on a host never changes its name.
"""

import sys

from ftcluster_train.supervisor.supervisor import free_port, main

__all__ = ["free_port", "main"]

if __name__ == "__main__":
    sys.exit(main())
