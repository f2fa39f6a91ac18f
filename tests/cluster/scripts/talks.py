"""A script whose output is hard to parse: partial lines, progress bars, own labels, no line end."""

import os
import sys
import time

rank = int(os.environ["RANK"])
sys.stdout.write("first ")
sys.stdout.flush()
time.sleep(0.2)
sys.stdout.write(f"half of {rank}\n[1] not a label: {sys.argv[1:]}\n")
for done in range(3):
    sys.stderr.write(f"\r{done}/3")
    sys.stderr.flush()
    time.sleep(0.1)
sys.stdout.write("".join(f"{rank}: line {number}\n" for number in range(2000)))
sys.stdout.write(f"end of {rank}, grün")
