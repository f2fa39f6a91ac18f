"""Brings model and data of a run to this host, before any rank starts.

    python -m ftcluster_train.prepare RUN_DIR [--hub-token]

With --hub-token it reads a token for the Hugging Face Hub from stdin, and keeps it in memory.
Writes the data as token samples, unless an earlier run has, and RUN_DIR/inputs.json, where the
ranks find what. Prints what is wrong, and exits with 1, where a user can mend it.
"""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers
from transformers.utils import logging as transformers_logging

from ftcluster_common.job import Job, read_job
from ftcluster_common.recipe import CausalLm, Recipe
from ftcluster_train.data.download import fetch_model
from ftcluster_train.data.sources import GENERATED, load_texts, version_of_named
from ftcluster_train.data.token_cache import cached_tokens, token_key
from ftcluster_train.data.train_tokenizer import make_tokenizer
from ftcluster_train.errors import TrainError
from ftcluster_train.inputs import Inputs, write_inputs
from ftcluster_train.io.permissions import ACCOUNT_ONLY
from ftcluster_train.launcher.stack_lock import hold_stack, own_stack
from ftcluster_train.tasks.registry import make_task
from ftcluster_train.training.models import (
    BY_TYPE,
    has_tokenizer,
    load_config,
    load_tokenizer,
    longest_input,
)

VOCABULARY = 50257  # GPT-2's


def prepare(job: Job) -> Inputs:
    """Fetch or generate what the recipe names, and tokenise it.

    Raises:
        TrainError: the model or the data cannot be had here, or do not fit the task.
    """
    recipe, models = job.recipe, job.prefix / "models"
    model = recipe.model
    if not model.startswith(BY_TYPE):
        model = fetch_model(model, models, weights=not recipe.from_scratch)
    folder, notices = _tokenizer(recipe, model, models, job.run_dir)
    tokenizer = load_tokenizer(folder)
    task = make_task(recipe, tokenizer)
    longest = longest_input(load_config(recipe, model, tokenizer), tokenizer)

    def encode(samples: Path) -> list[str]:
        return task.encode(recipe.data, longest, samples)

    settings = {
        "task": recipe.task,
        "options": asdict(recipe.options),
        "longest": longest,
        "data": _version_of_data(recipe),
        "transformers": transformers.__version__,
    }
    folders = [Path(name) for name in (folder, recipe.data) if Path(name).is_dir()]
    # what another build of this package has made may lack what this one looks for
    key = token_key(settings, [Path(__file__).parent, *folders])
    samples, said = cached_tokens(job.prefix / "cache" / "tokens", key, encode)
    return Inputs(model, folder, str(samples), notices + said)


def _version_of_data(recipe: Recipe) -> Any:
    """What tells the recipe's data from others, but for the files of a folder."""
    if recipe.data.startswith(GENERATED):
        return recipe.data
    return "" if Path(recipe.data).is_dir() else version_of_named(recipe.data, recipe.data_config)


def _tokenizer(recipe: Recipe, model: str, models: Path, run_dir: Path) -> tuple[str, list[str]]:
    """The folder of the tokenizer, and what to say of it."""
    if recipe.tokenizer:
        return fetch_model(recipe.tokenizer, models, False, "tokenizer"), []
    if not model.startswith(BY_TYPE) and has_tokenizer(model):
        return model, []
    if not recipe.from_scratch or not isinstance(recipe.options, CausalLm):
        raise TrainError(f"{recipe.model} has no tokenizer", "give one: tokenizer=DIR")
    texts = load_texts(recipe.data, recipe.data_config, recipe.options.text_column)
    made = make_tokenizer(texts["train"], recipe.options.vocab_size or VOCABULARY)
    folder = run_dir / "tokenizer"
    made.save_pretrained(folder)
    return str(folder), [f"a tokenizer of {len(made)} tokens was made from the data"]


def main() -> int:
    """Entry point; returns the exit code."""
    os.umask(ACCOUNT_ONLY)
    if "--hub-token" in sys.argv[2:]:
        os.environ["HF_TOKEN"] = sys.stdin.read().strip()
    transformers_logging.set_verbosity_error()  # texts longer than the model is no warning here
    run_dir = Path(sys.argv[1])
    try:
        hold_stack(own_stack())
        inputs = prepare(read_job(run_dir))
    except TrainError as error:
        print(error.message)
        print(error.hint)
        return 1
    except OSError as error:
        if error.errno != 28:
            raise
        print(f"the disk of {error.filename or run_dir} is full")
        return 1
    write_inputs(run_dir, inputs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
