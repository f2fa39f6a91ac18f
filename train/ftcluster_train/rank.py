"""One rank of a run: `mpirun ... python -m ftcluster_train.rank RUN_DIR`."""

import errno
import logging
import os
import shutil
import sys
import traceback
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed
from transformers.utils import logging as transformers_logging

from ftcluster_train.compat import dtype_keyword
from ftcluster_train.data import Samples, load_splits, tokenise
from ftcluster_train.engine import train
from ftcluster_train.errors import TrainError, error_line
from ftcluster_train.events import EventWriter
from ftcluster_train.ipex import load_ipex, without_ipex
from ftcluster_train.job import Job, read_job
from ftcluster_train.prepare import read_inputs
from ftcluster_train.save import check_space, save_model
from ftcluster_train.world import join_world, leave_world


def run(job: Job) -> None:
    """Load, train and save; every rank calls it with the same job.

    Raises:
        TrainError: something a user can mend.
    """
    inputs = read_inputs(job.run_dir)
    if job.ipex:
        load_ipex()  # before anything that takes time
    world = join_world()
    events = EventWriter(job.run_dir) if world.rank == 0 else None
    if events:
        events.write("phase", doing="loading model and data")
    try:
        tokenizer = AutoTokenizer.from_pretrained(inputs.model)
        splits = load_splits(inputs.data, job.recipe)
        samples = {name: tokenise(rows, job.recipe, tokenizer) for name, rows in splits.items()}
        classes = count_classes(samples["train"], samples["validation"])
        set_seed(job.recipe.training.seed)  # the new classifier's first weights
        fp32 = {dtype_keyword(transformers.__version__): torch.float32}
        model = AutoModelForSequenceClassification.from_pretrained(
            inputs.model, num_labels=classes, **fp32
        )
    except TrainError:
        raise
    except Exception as error:  # from_pretrained raises whatever its many readers raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise TrainError(f"{inputs.model} cannot be loaded: {error}") from error
    if events:
        check_space(job.run_dir, model)
    report = train(job, model, tokenizer, samples["train"], samples["validation"], world, events)
    if events:
        events.write("phase", doing="saving the model")
        trained = without_ipex(model) if job.ipex else model
        folder = save_model(trained, tokenizer, job.run_dir / "model")
        events.write(
            "result",
            model=str(folder),
            metrics=report.metrics,
            samples_per_second=report.samples_per_second,
            train_seconds=report.train_seconds,
            world_size=world.size,
        )
    leave_world()


def count_classes(train_set: Samples, validation_set: Samples) -> int:
    """The number of classes in the training data, at least two.

    Raises:
        TrainError: a label is negative (as in unlabelled splits), or validation has a class that
            training does not.
    """
    labels = set(train_set.labels)
    if min(labels) < 0:
        raise TrainError("the training data has negative labels, so it is not labelled")
    unknown = sorted(set(validation_set.labels) - labels)
    if unknown:
        raise TrainError(f"validation has classes {unknown}, which the training data does not have")
    return max(2, max(labels) + 1)


def main() -> int:
    """Entry point; returns the exit code."""
    logging.captureWarnings(True)
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    run_dir = Path(sys.argv[1])
    try:
        run(read_job(run_dir))
    except TrainError as error:
        print(error_line(error), flush=True)
        return 1
    except OSError as error:
        traceback.print_exc()
        if error.errno == errno.ENOSPC:
            print(error_line(disk_full(run_dir)), flush=True)
        return 1
    return 0


def disk_full(folder: Path) -> TrainError:
    """The error for a disk without space for the run."""
    free = shutil.disk_usage(folder).free
    return TrainError(
        f"the disk of {folder} is full ({free / 1e6:.0f} MB free)",
        "free some space there; ftcluster keeps each run in a folder beside it",
    )


if __name__ == "__main__":
    sys.exit(main())
