"""Locks the stack that a run uses, and lists the stack's packages.

A run holds a shared lock on the stack's folder. Setup takes an exclusive lock before it changes or
removes a stack. The kernel releases a lock when the last process that holds it has ended. Standard
library only, because every rank waits for these imports.

This command prints the packages that a script's own requirements must be compatible with, as JSON:

    python -m ftcluster_train.host.stack
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from ftcluster_train.errors import TrainError
from ftcluster_train.io.locks import SHARED, lock_within

WAIT_SECONDS = 20.0  # setup may be replacing the node package
PAUSE_SECONDS = 0.1


def hold_stack(stack: Path, inherited: bool = False) -> None:
    """Protect a stack from changes for as long as this process lives.

    Args:
        inherited: True if programs that this process executes also hold the lock.

    Raises:
        TrainError: the stack does not exist, or setup is changing it for longer than WAIT_SECONDS.
    """
    host = socket.gethostname()
    gone = TrainError(f"the stack {stack} no longer exists on {host}", "run ftcluster setup")
    try:
        descriptor = os.open(stack, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        raise gone from None
    os.set_inheritable(descriptor, inherited)
    if not lock_within(descriptor, SHARED, lambda: WAIT_SECONDS, PAUSE_SECONDS):
        os.close(descriptor)
        raise TrainError(
            f"ftcluster setup is changing the stack {stack} on {host}",
            "wait until setup has ended, then start the run again",
        )
    try:
        same = os.path.samestat(os.fstat(descriptor), stack.stat())
    except OSError:
        same = False
    if not same:  # removed or replaced meanwhile
        os.close(descriptor)
        raise gone


def own_stack() -> Path:
    """Return the folder of the environment that this Python runs from."""
    return Path(sys.prefix)


def stack_packages() -> dict[str, Any]:
    """Return this Python's stack and its packages, with which added packages must be compatible.

    For each package, only the requirements of its extras are listed, because its other requirements
    are already in the stack.
    """
    import importlib.metadata  # imported here, because every rank imports this module
    import platform
    import sysconfig

    packages = [
        {
            "name": package.name,
            "version": package.version,
            "extras": [line for line in package.requires or () if "extra ==" in line],
        }
        for package in importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])
    ]
    return {
        "stack": Path(sys.prefix).resolve().name,
        "python": "{}.{}".format(*sys.version_info),
        "glibc": (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc "),
        "machine": platform.machine(),
        "packages": packages,
    }


def main() -> None:
    """Print the packages as JSON."""
    print(json.dumps(stack_packages()))


if __name__ == "__main__":
    main()
