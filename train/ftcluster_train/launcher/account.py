"""Looks at an account's files with no more rights than the account has.

The account may put links, pipes or files without end where its files are expected. Root that looks
at them would read what is not the account's, or wait for ever. Standard library only.
"""

import os
import pwd
import signal
import sys
import time
import traceback
from collections.abc import Callable
from resource import RLIMIT_AS, setrlimit

MEMORY_BYTES = 1 << 30  # of the looking process


def as_account(name: str, look: Callable[[], bool], seconds: float) -> bool:
    """What a function answers in a process that has only the account's rights.

    Args:
        name: the account's.
        seconds: after which the process is killed, and the answer is False.

    Raises:
        KeyError: there is no such account.
    """
    account = pwd.getpwnam(name)
    child = os.fork()
    if child == 0:
        answer = False
        try:
            os.chdir("/")
            os.setgroups([])
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
            setrlimit(RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            answer = look()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0 if answer else 1)
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.02)
