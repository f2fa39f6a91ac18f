"""Start `ftcluster_train.io.stack` by the name that control nodes and published pages use.

Control nodes and hosts may have different versions of ftcluster, so a program that a control node
starts on a host never changes its name.
"""

from ftcluster_train.io.stack import main

if __name__ == "__main__":
    main()
