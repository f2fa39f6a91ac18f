"""Start `ftcluster_train.io.stack` by the name that control nodes and published pages use.

Control nodes and hosts may have different versions of ftcluster, so the names of the programs that
one starts on the other stay the same.
"""

from ftcluster_train.io.stack import main

if __name__ == "__main__":
    main()
