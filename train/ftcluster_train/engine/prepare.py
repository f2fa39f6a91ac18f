"""Prepares model and data of a run on this host, before any rank starts.

    python -m ftcluster_train.engine.prepare RUN_DIR [--hub-token | --job FILE]

With --hub-token it reads a token for the Hugging Face Hub from stdin, and keeps it in memory. With
--job it makes RUN_DIR and puts the job there; other hosts may do the same at the same time in the
same folder, on a network's file system.
Writes the data as token samples, unless an earlier run has, and RUN_DIR/inputs.json with the paths
for the ranks. Prints an error that a user can fix, and exits with 1.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # collections are a quarter of the CPU time of the imports below

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from transformers.utils import logging as transformers_logging

from ftcluster_common.data_files import DataError
from ftcluster_common.given_files import GivenFileError
from ftcluster_common.job import Job, read_job
from ftcluster_common.recipe import BY_TYPE, GENERATED, CausalLm, Recipe
from ftcluster_train.engine.adapters import check_whole
from ftcluster_train.engine.data.download import fetch_model
from ftcluster_train.engine.data.sources import dataset_version, load_texts
from ftcluster_train.engine.data.token_store import (
    Inputs,
    Samples,
    cached_tokens,
    token_key,
    write_inputs,
)
from ftcluster_train.engine.models import (
    check_quantization,
    check_tokens,
    has_tokenizer,
    load_config,
    load_tokenizer,
    longest_input,
    train_tokenizer,
)
from ftcluster_train.engine.tasks.registry import make_task
from ftcluster_train.errors import TrainError
from ftcluster_train.host.stack import hold_stack, own_stack
from ftcluster_train.io.fsync import ACCOUNT_ONLY, write_atomically

VOCABULARY = 50257  # GPT-2's


def prepare(job: Job) -> Inputs:
    """Download or generate what the recipe names, and tokenise it.

    Raises:
        TrainError, DataError: model or data cannot be loaded, or do not fit the task.
    """
    recipe, models = job.recipe, job.prefix / "models"
    model = recipe.model
    if not model.startswith(BY_TYPE):
        model = fetch_model(model, models, weights=not recipe.from_scratch)
        check_whole(model)
    folder, notices = _tokenizer(recipe, model, models, job.run_dir)
    tokenizer = load_tokenizer(folder)
    config = load_config(recipe, model, tokenizer)
    check_quantization(recipe, config)
    trained = None if job.purpose == "train" else config
    task = make_task(recipe, tokenizer, job.purpose, trained)
    longest = longest_input(config, tokenizer)

    def encode(samples: Path) -> list[str]:
        return task.encode(recipe.data, longest, samples)

    settings = {
        "task": recipe.task,
        "options": asdict(recipe.options),
        "split": recipe.training.data_seed,
        "purpose": job.purpose,
        "classes": trained.label2id if trained else None,
        "longest": longest,
        "data": _data_version(recipe),
        "transformers": transformers.__version__,
    }
    paths = [Path(name) for name in (folder, recipe.data) if Path(name).exists()]
    # another build of this package may have written other columns
    key = token_key(settings, [Path(__file__).parent, *paths])
    samples, more = cached_tokens(job.prefix / "cache" / "tokens", key, encode)
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    if isinstance(vocabulary, int):  # else the ranks find out
        sets = [Samples(path) for path in samples.iterdir() if path.is_dir()]
        largest = max(split.about["largest"]["input_ids"] for split in sets)
        check_tokens(vocabulary, largest, recipe.tokenizer or recipe.model)
    return Inputs(model, folder, str(samples), notices + more)


def _data_version(recipe: Recipe) -> Any:
    """Changes with the data; the files of a folder are hashed elsewhere."""
    if recipe.data.startswith(GENERATED):
        return recipe.data
    return "" if Path(recipe.data).exists() else dataset_version(recipe.data, recipe.data_config)


def _tokenizer(recipe: Recipe, model: str, models: Path, run_dir: Path) -> tuple[str, list[str]]:
    """The folder of the tokenizer, and notices about it."""
    if recipe.tokenizer:
        return fetch_model(recipe.tokenizer, models, False, "tokenizer"), []
    if not model.startswith(BY_TYPE) and has_tokenizer(model):
        return model, []
    if not recipe.from_scratch or not isinstance(recipe.options, CausalLm):
        raise TrainError(f"{recipe.model} has no tokenizer", "use another one: tokenizer=DIR")
    texts = load_texts(recipe.data, recipe.data_config, recipe.options)
    tokenizer = train_tokenizer(texts["train"], recipe.options.vocab_size or VOCABULARY)
    folder = run_dir / "tokenizer"
    tokenizer.save_pretrained(folder)
    return str(folder), [f"a tokenizer of {len(tokenizer)} tokens was trained on the data"]


def main() -> int:
    """Entry point; returns the exit code."""
    gc.freeze()  # what was imported stays
    gc.enable()
    os.umask(ACCOUNT_ONLY)
    if "--hub-token" in sys.argv[2:]:
        os.environ["HF_TOKEN"] = sys.stdin.read().strip()
    transformers_logging.set_verbosity_error()  # about texts that are longer than the model takes
    run_dir = Path(sys.argv[1])
    job_file = sys.argv[3] if sys.argv[2:3] == ["--job"] else ""
    try:
        hold_stack(own_stack())
        with _one_host_at_a_time(run_dir) if job_file else contextlib.nullcontext():
            if job_file:
                write_atomically(run_dir / "job.json", Path(job_file).read_text(encoding="utf-8"))
            write_inputs(run_dir, prepare(read_job(run_dir)))
    except (DataError, GivenFileError) as error:
        print(error)
        return 1
    except TrainError as error:
        print(error.message)
        print(error.hint)
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"the disk of {error.filename or run_dir} is full")
        return 1
    return 0


@contextlib.contextmanager
def _one_host_at_a_time(run_dir: Path) -> Iterator[None]:
    """A lock on a folder of several hosts; the second one finds all that the first has made."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "prepare.lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: both do the work
            fcntl.lockf(lock, fcntl.LOCK_EX)  # also over NFS, see fcntl_locking(2)
        yield


if __name__ == "__main__":
    sys.exit(main())
