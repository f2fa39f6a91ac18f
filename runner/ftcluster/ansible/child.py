"""Runs a program that the kernel ends as soon as its parent process ends.

    python -P child.py PID PROGRAM ...

PID is the id of the parent process. PROGRAM is a Python program and runs in the same process.
Without -P, PROGRAM would import modules from this folder. This file imports nothing from ftcluster,
so it can run without ftcluster's folders.
"""

import ctypes
import gc
import os
import runpy
import shutil
import signal
import sys

PR_SET_PDEATHSIG = 1  # Linux, include/uapi/linux/prctl.h
# number of new objects that starts a garbage collection. The default is too low, because Ansible
# creates many objects at its start and keeps most of them
NEW_OBJECTS = 50_000

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent process has already ended")
    gc.set_threshold(NEW_OBJECTS)
    sys.argv = sys.argv[2:]
    runpy.run_path(shutil.which(sys.argv[0]) or sys.argv[0], run_name="__main__")
