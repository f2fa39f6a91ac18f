"""What Python imports first in a user's script: gives gloo's threads time to finish at its end.

`ftcluster_train.script` puts this folder first on PYTHONPATH. A thread of torch's gloo backend lets
go of the tensors of the last collective a moment after that has returned, and needs Python's lock
for it; if Python is ending by then, the thread aborts the process ("terminate called without an
active exception"), and a script that has done all its work ends with SIGABRT. Seen with torch
2.13.0: up to every third rank that had one core (pytorch pull request 179291 has another case).
"""

import atexit
import contextlib
import importlib
import sys
import time
from pathlib import Path

SETTLE_SECONDS = 0.3
THREADS = ("pt_gloo_runloop",)  # as torch calls them


def _settle() -> None:
    """While this sleeps, the threads get Python's lock."""
    names = Path("/proc/self/task").glob("*/comm")
    with contextlib.suppress(OSError):  # a thread ended meanwhile
        if any(name.read_text().strip() in THREADS for name in names):
            time.sleep(SETTLE_SECONDS)


def _import_the_other() -> None:
    """The sitecustomize that this one has taken the place of, if there is one."""
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    own = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    if own is not None:
        sys.modules.setdefault("sitecustomize", own)


atexit.register(_settle)  # handlers are called in reverse order, so this one last
_import_the_other()
