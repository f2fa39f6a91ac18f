"""A script that ends one rank as its arguments say while other ranks wait in a collective."""

import os
import signal
import sys
import time

what, who = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
print(f"rank {rank} is here", end=" ", flush=True)
print("now")
if rank == who:
    if what.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, what))
    sys.exit(int(what))
time.sleep(300)
