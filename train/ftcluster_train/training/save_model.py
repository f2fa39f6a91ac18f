"""Saving a trained model so that what can be seen is whole, also after a crash."""

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_train.errors import TrainError
from ftcluster_train.io.fsync import sync
from ftcluster_train.io.permissions import GROUP_READS

MARGIN = 1.2  # tokenizer and configuration, and a file system's own needs


def check_space(folder: Path, model: torch.nn.Module) -> None:
    """Make sure before the training that its model can be saved after it.

    Raises:
        TrainError: the disk has too little space; says how much there is and how much is needed.
    """
    needed = MARGIN * sum(p.numel() * p.element_size() for p in model.parameters())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TrainError(
            f"the disk of {folder} has {free / 1e6:.0f} MB free, "
            f"saving the model takes {needed / 1e6:.0f} MB",
            "free some space there, or set the cluster up in another folder: "
            "ftcluster setup -e ftcluster_prefix=DIR",
        )


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    """Write model and tokenizer as `from_pretrained` reads them; returns `folder`.

    All files are on the disk before `folder` appears.

    Raises:
        TrainError: the disk is full; nothing is left of the attempt.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        for path in [*partial.rglob("*"), partial]:
            if path.is_file():
                path.chmod(0o666 & ~GROUP_READS)  # safetensors makes them for the account only
            sync(path)
        partial.rename(folder)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        if "No space left" not in str(error):
            raise
        raise TrainError(
            f"the disk of {folder.parent} is full, so the model could not be saved",
            "free some space there and train again",
        ) from error
    return folder
