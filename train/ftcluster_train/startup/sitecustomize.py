"""The module that Python imports when a user's script starts; it comes first on PYTHONPATH.

- Packages that the script's requirements add are found after the stack's packages, see `add_layer`.
- With `--fast`, our kernels replace torch's functions when the script has imported torch, see
  `ftcluster_train.fast`.
- A script that names no backend of torch.distributed gets the planned backend, see
  `script_backend`.
- The store of torch's rendezvous listens only at the head's address, see `listen_at_one_address`.
- A script that hangs writes its Python stacks on request, see `rank_status`.
- At the end of the script, gloo's threads get time to finish.

A thread of torch's gloo backend releases the tensors of the last collective a moment after the
collective has returned, and needs the GIL for that. If Python is already ending, the thread aborts
the process ("terminate called without an active exception"), and a successful script ends with
SIGABRT. This was seen with torch 2.13.0 on up to every third rank if all ranks shared one core
(pytorch pull request 179291 describes another case).
"""

import atexit
import contextlib
import importlib
import os
import sys
import time
from pathlib import Path

from ftcluster_common.protocol.launch import FAST_VARIABLE
from ftcluster_train.io import rank_status
from ftcluster_train.rank.script_backend import use_planned_backend
from ftcluster_train.rank.startup_hooks import (
    RENDEZVOUS,
    add_layer,
    after_import,
    listen_at_one_address,
)

SETTLE_SECONDS = 0.3
THREADS = ("pt_gloo_runloop",)  # names of gloo's threads in torch


def _settle() -> None:
    """Sleep if gloo's threads exist, so that they get the GIL."""
    names = Path("/proc/self/task").glob("*/comm")
    with contextlib.suppress(OSError):  # a thread has ended
        if any(name.read_text().strip() in THREADS for name in names):
            time.sleep(SETTLE_SECONDS)


def _import_next() -> None:
    """Import the sitecustomize that this module hides, if there is one."""
    here = str(Path(__file__).parent)
    sys.path[:] = [folder for folder in sys.path if folder != here]
    this_module = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    if this_module is not None:
        sys.modules.setdefault("sitecustomize", this_module)


def _enable_fast() -> None:
    importlib.import_module("ftcluster_train.fast").enable()


add_layer()
if os.environ.get(FAST_VARIABLE):
    after_import("torch", _enable_fast)
use_planned_backend()
after_import(RENDEZVOUS, listen_at_one_address)
rank_status.write_stacks_on_signal()
atexit.register(_settle)  # handlers run in reverse order, so this one runs last
_import_next()
