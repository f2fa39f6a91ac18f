"""Makes torch.distributed use the planned backend if a script names none, and reports the choice.

Only the standard library is used until the script imports torch or Accelerate.
"""

import importlib
import os
from functools import wraps
from typing import Any

from ftcluster_common.protocol.launch import (
    ACCELERATE_CPU_VARIABLE,
    BACKEND_VARIABLE,
    GLOO,
    IMPI,
    own_rank,
)
from ftcluster_train.io.mpi_output import BACKEND_MARKER
from ftcluster_train.rank.startup_hooks import after_import

STDERR = 2


def use_planned_backend() -> None:
    """Make torch and libraries based on it use the planned backend; rank 0 reports the backend."""
    after_import("torch", _torch)
    after_import("accelerate.state", _accelerate)
    after_import("transformers.training_args", _transformers)


def _torch() -> None:
    """Set torch's default backend for CPUs, which Lightning also uses."""
    groups: Any = importlib.import_module("torch.distributed.distributed_c10d")
    # torch before 2.5 does not load the backend automatically
    importlib.import_module("ftcluster_train.mpi")
    defaults = getattr(groups.Backend, "default_device_backend_map", {})
    if os.environ.get(BACKEND_VARIABLE) == IMPI:
        defaults["cpu"] = IMPI
    if own_rank({"PMI_RANK": "0", **os.environ}) == 0 and hasattr(groups, "get_backend_config"):
        update = groups._update_default_pg

        def reported(group: Any) -> None:
            update(group)
            if group is not None:
                os.write(STDERR, f"{BACKEND_MARKER}{_backend_of(group)}\n".encode())

        groups._update_default_pg = reported


def _backend_of(group: Any) -> str:
    """Return a group's backend for CPUs; get_backend returns "undefined" if none was named."""
    groups: Any = importlib.import_module("torch.distributed.distributed_c10d")
    by_device = groups.get_backend_config(group)
    return str(dict(part.split(":") for part in by_device.split(",")).get("cpu", by_device))


def _accelerate() -> None:
    """Make Accelerate, and thus Trainer, use the planned backend instead of gloo on CPUs."""
    state = importlib.import_module("accelerate.state").PartialState
    groups: Any = importlib.import_module("torch.distributed")
    prepare = state._prepare_backend

    @wraps(prepare)
    def prepared(
        self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> tuple[str | None, Any]:
        # PartialState ignores the variable, so without this each rank would train alone
        cpu = cpu or os.environ.get(ACCELERATE_CPU_VARIABLE) == "true"
        chosen, kind = prepare(self, cpu, sagemaker_dp, backend)
        if chosen == GLOO and not backend and groups.is_initialized():
            chosen = _backend_of(None)
        elif chosen == GLOO and (backend or os.environ.get(BACKEND_VARIABLE)) == IMPI:
            chosen = IMPI
        return chosen, kind

    state._prepare_backend = prepared


def _transformers() -> None:
    """Make the option --ddp_backend accept impi."""
    arguments = importlib.import_module("transformers.training_args").TrainingArguments
    choices = arguments.__dataclass_fields__["ddp_backend"].metadata["choices"]
    if IMPI not in choices:
        choices.append(IMPI)
