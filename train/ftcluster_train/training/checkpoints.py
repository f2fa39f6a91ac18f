"""Saved models: a folder that exists is complete, also after a crash."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftcluster_train.errors import TrainError
from ftcluster_train.io.fsync import remove, sync
from ftcluster_train.io.permissions import GROUP_READS

MARGIN = 1.2  # tokenizer, configuration and the file system's own needs


def check_space(folder: Path, model: torch.nn.Module) -> None:
    """Make sure before the training that the disk has space for the model.

    Raises:
        TrainError: it has not.
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


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    write_more: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write model and tokenizer for `from_pretrained`, and sync all files before `folder` appears.

    Args:
        model: in fp32.
        tokenizer: of the model.
        folder: must not exist.
        write_more: called with the folder that is not visible yet, to write other files into it.

    Raises:
        TrainError: the disk is full; the incomplete files are removed.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        write_more(partial)
        for path in [*partial.rglob("*"), partial]:
            if path.is_file():
                path.chmod(0o666 & ~GROUP_READS)  # safetensors lets only the account read them
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


def existing_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of a run that was restarted, oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[11:]))


def keep_newest(saved: Sequence[Path], limit: int, best: Path | None) -> list[Path]:
    """Remove the oldest checkpoints beyond `limit`, never the best or the last; the others."""
    removable = [folder for folder in saved[:-1] if folder != best]
    removed = removable[: max(0, len(saved) - limit)]
    for folder in removed:
        remove(folder)
    return [folder for folder in saved if folder not in removed]
