"""Cache of prepared inputs on a host, for later runs that need the same inputs.

PREFIX/cache/inputs contains a file for each entry. The file name is a hash of the recipe, the
packages and the user's own code. This module uses only the standard library, so that a run that
reuses inputs need not import torch.
"""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import ftcluster_common
from ftcluster_common.given_files import GivenFileError, read_form
from ftcluster_common.models.model_package import PACKAGE
from ftcluster_common.protocol.job import Job
from ftcluster_common.recipe import BY_TYPE, GENERATED
from ftcluster_train.engine.data.run_code import open_job
from ftcluster_train.engine.data.run_inputs import Inputs, write_inputs
from ftcluster_train.engine.data.token_cache import (
    NO_TOKEN_FILES,
    NOTICES_FILE,
    remove_least_recent,
    token_key,
)
from ftcluster_train.errors import TrainError
from ftcluster_train.io.fsync import ACCOUNT_ONLY, write_atomically

KEPT_INPUTS = 64  # maximum number of entries
# fields of `training` that affect neither the tokens nor the report on the data
OF_STEPS = frozenset(
    {"adam_beta1", "adam_beta2", "adam_epsilon", "eval_steps", "gradient_accumulation_steps",
     "learning_rate", "logging_first_step", "logging_steps", "lr_scheduler_kwargs",
     "lr_scheduler_type", "max_grad_norm", "max_steps", "num_train_epochs", "report_to",
     "resume_from_checkpoint", "run_name", "save_steps", "warmup_ratio", "warmup_steps",
     "weight_decay"}
)  # fmt: skip


def reuse_inputs(arguments: Sequence[str]) -> bool:
    """Reuse the inputs of an earlier run if possible; return True if inputs were reused.

    The earlier run must have the same recipe (except OF_STEPS), model, tokenizer, data and
    packages. If the recipe names a model or data on the Hub, inputs are never reused, because the
    files on the Hub may change.

    Args:
        arguments: command line arguments of engine.prepare; if there is an argument besides RUN_DIR
            and --hub-token, nothing is reused.
    """
    if arguments[1:] not in ([], ["--hub-token"]) or arguments[0].startswith("--"):
        return False
    os.umask(ACCOUNT_ONLY)
    try:
        job = open_job(Path(arguments[0]))
        if (path := _inputs_of(job)) is None:
            return False
        inputs, files = read_form(path, lambda data: (Inputs(**data["inputs"]), data["files"]))
        if not (Path(inputs.samples) / NOTICES_FILE).is_file() or files != _files(job, inputs):
            return False
        os.utime(inputs.samples)  # mark both entries as recently used
        os.utime(path)
    except (GivenFileError, OSError, TrainError):  # the preparation reports these errors
        return False
    write_inputs(job.run_dir, inputs)
    return True


def keep_inputs(job: Job, inputs: Inputs) -> None:
    """Add the inputs of a run to the cache."""
    path = _inputs_of(job)
    if path is None or Path(inputs.tokenizer).is_relative_to(job.run_dir):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"inputs": asdict(inputs), "files": _files(job, inputs)}
    write_atomically(path, json.dumps(document) + "\n")
    remove_least_recent(path.parent, KEPT_INPUTS, path)


def _inputs_of(job: Job) -> Path | None:
    """Return the cache file for a run's inputs; None if the recipe names anything on the Hub."""
    recipe = job.recipe
    is_local = recipe.model.startswith((BY_TYPE, PACKAGE)) or Path(recipe.model).is_dir()
    others = (recipe.tokenizer, recipe.teacher, recipe.adapter_base)
    is_local &= all(not name or Path(name).is_dir() for name in others)
    sources = [data_set.path for data_set in recipe.data_sets]
    is_local &= all(path.startswith(GENERATED) or Path(path).exists() for path in sources)
    if not is_local:
        return None
    fields = job.to_dict()["recipe"]
    training = {name: fields["training"][name] for name in fields["training"].keys() - OF_STEPS}
    packages = [sys.prefix, Path(sysconfig.get_path("purelib")).stat().st_mtime_ns]
    code = [file.sha256 for file in job.code.files]
    made_of = [{**fields, "training": training}, job.purpose, packages, *([code] if code else [])]
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    return job.prefix / "cache" / "inputs" / f"{digest}.json"


def _files(job: Job, inputs: Inputs) -> str:
    """Return a hash of the files that the inputs depend on: data, tokenizer, code and weights.

    Weights are hashed by name, size and modification time, and all other files by content.
    """
    models = (inputs.model, inputs.adapters, inputs.teacher)
    weights = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in filter(None, models)
        for path in sorted(Path(folder).glob("*"))
        if path.suffix in NO_TOKEN_FILES
    ]
    code = [Path(__file__).parents[1], Path(ftcluster_common.__file__).parent]
    names = (*models, inputs.tokenizer, *(data_set.path for data_set in job.recipe.data_sets))
    read = [Path(name) for name in names if name and Path(name).exists()]
    return token_key({"weights": weights}, [*code, *read])
