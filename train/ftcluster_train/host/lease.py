"""Start `ftcluster_train.supervisor.lease` by the name that control nodes and published pages use.

Control nodes and hosts may have different versions of ftcluster, so the names of the programs that
one starts on the other stay the same.
"""

import sys

from ftcluster_train.supervisor.lease import main

if __name__ == "__main__":
    sys.exit(main())
