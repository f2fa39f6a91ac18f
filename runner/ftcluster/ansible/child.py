"""Runs a program that ends with the process that started it: python child.py PID PROGRAM ...

A program by itself, so that it does not need ftcluster's folders.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # Linux, include/uapi/linux/prctl.h

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this one has ended")
    os.execvp(sys.argv[2], sys.argv[2:])
