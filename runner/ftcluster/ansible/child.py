"""Runs a program that ends with the process that started it: python child.py PID PROGRAM ...

It imports nothing from ftcluster, so it can run without ftcluster's folders. PROGRAM is a Python
program and runs in the same process. Start this file with python -P; otherwise PROGRAM would import
modules from this folder.
"""

import ctypes
import gc
import os
import runpy
import shutil
import signal
import sys

PR_SET_PDEATHSIG = 1  # Linux, include/uapi/linux/prctl.h
# new objects between two garbage collections: Ansible creates many at its start and keeps most
NEW_OBJECTS = 50_000

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this one has ended")
    gc.set_threshold(NEW_OBJECTS)
    sys.argv = sys.argv[2:]
    runpy.run_path(shutil.which(sys.argv[0]) or sys.argv[0], run_name="__main__")
