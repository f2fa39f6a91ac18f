"""What the packages of a script's own requirements are chosen by, as one JSON document.

    python -m ftcluster_train.host.stack_packages

Standard library only.
"""

import importlib.metadata
import json
import os
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any


def stack_packages() -> dict[str, Any]:
    """The stack that this Python is of, and what packages beside it must be compatible with.

    A package has only the requirements of its extras: all others are in the stack.
    """
    packages = [
        {
            "name": found.name,
            "version": found.version,
            "extras": [line for line in found.requires or () if "extra ==" in line],
        }
        for found in importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])
    ]
    return {
        "stack": Path(sys.prefix).resolve().name,
        "python": "{}.{}".format(*sys.version_info),
        "glibc": (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc "),
        "machine": platform.machine(),
        "packages": packages,
    }


if __name__ == "__main__":
    print(json.dumps(stack_packages()))
