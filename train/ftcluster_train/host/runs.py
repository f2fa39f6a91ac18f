"""Start `ftcluster_train.supervisor.runs` by the name that control nodes and published pages use.

Control nodes and hosts may have different versions of ftcluster, so a program that a control node
starts on a host never changes its name.
"""

import sys

from ftcluster_train.supervisor.runs import main

if __name__ == "__main__":
    sys.exit(main())
