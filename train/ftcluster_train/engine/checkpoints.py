"""Save models and checkpoints, so that every folder that exists is complete, even after a crash."""

import json
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from transformers import PreTrainedModel

from ftcluster_common.models.row_hashes import ROWS
from ftcluster_common.models.trained_model import FILE, trained_document
from ftcluster_common.protocol.events import CHECKPOINT
from ftcluster_common.protocol.job import Job
from ftcluster_common.sizes import free_and_needed
from ftcluster_train.comm.world import World, folder_led, gather_over_ranks
from ftcluster_train.engine.adapters import (
    adapted_layers,
    head_fields,
    save_adapters,
    saved_parameters,
    saved_weights,
    trained_weights,
)
from ftcluster_train.engine.model_card import MeasuredModel, write_card
from ftcluster_train.engine.optim.base import OptimizerStep, State, exhaust
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.saved_check import NotAsTrainedError, SavedCheck
from ftcluster_train.engine.state_files import write_state
from ftcluster_train.engine.tasks.base import Task
from ftcluster_train.engine.train_state import TrainState
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.io.fsync import GROUP_READS, new_folder, remove, remove_leftovers

MARGIN = 1.2  # required space, relative to the weights, including other files and overhead
HOSTS = 2  # number of hosts that write each checkpoint, so that one of them may fail


class Checkpoints:
    """The checkpoints of a run.

    One rank on each of two hosts writes every checkpoint, so that no host must copy it later.

    Args:
        resumed: step after which this run resumes; checkpoints of later steps are not used.
        check: validator for the first checkpoint, or None for no check.
    """

    def __init__(
        self, job: Job, resumed: int, world: World, log: ProgressLog, check: SavedCheck | None
    ) -> None:
        self._check, self._job = check, job
        folder = self._folder = job.run_dir / "checkpoints"
        self._limit = job.recipe.training.save_total_limit
        self._world, self._log = world, log
        led = folder_led(world.rank, job.shared_folder)
        self._writes = led is not None and led < HOSTS
        if self._writes:
            remove_leftovers(folder)
        names = (path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*"))
        steps = sorted(int(name) for name in names if name.isdecimal())
        self._saved = [self.of(step) for step in steps if step <= resumed]  # oldest first

    def of(self, step: int) -> Path:
        """Return the folder for the checkpoint of a step."""
        return self._folder / f"checkpoint-{step}"

    def save(self, optimizer: OptimizerStep, task: Task, state: TrainState) -> Path | None:
        """Save a checkpoint unless it exists; every rank must call this method.

        If the disk is full, this method only logs a notice.

        Returns:
            The checkpoint's folder; None if no host could save it.
        """
        folder = self.of(state.step)
        writes = self._writes and folder not in self._saved
        if True not in gather_over_ranks(writes):
            return folder
        began = time.perf_counter()
        problem = self._write(folder, optimizer, task, state, writes)
        answers: list[tuple[str | None, str]] = gather_over_ranks((problem, socket.gethostname()))
        problems = [text for text, _ in answers]
        for rank, (text, host) in enumerate(answers):
            if text:
                what = f"no checkpoint of step {state.step} on {host} (rank {rank})"
                self._log.notice(f"{what}: {text}", failed_save=CHECKPOINT)
        if problems[0] == "":
            seconds = round(time.perf_counter() - began, 3)
            self._log.write("checkpoint", step=state.step, folder=str(folder), seconds=seconds)
        return folder if "" in problems else None

    def _write(
        self, folder: Path, optimizer: OptimizerStep, task: Task, state: TrainState, writes: bool
    ) -> str | None:
        """Write the checkpoint on some ranks; the other ranks send their pieces of the state.

        Returns:
            The reason why the checkpoint could not be saved, or ""; None on a rank that does not
            write.
        """
        tensors = optimizer.state() or State({})
        pieces = tensors.pieces()

        def write_more(partial: Path) -> None:
            measured = MeasuredModel(state.metrics, state.classes, state.step, self._world.size)
            write_card(partial, self._job, task, measured)
            if tensors.header:
                write_state(partial, tensors.header, pieces, state)

        try:
            model = optimizer.detach(writes)
            if not writes:
                return None
            folder.parent.mkdir(exist_ok=True)
            saved = sum(p.nbytes for p in saved_parameters(model))
            check_space(folder.parent, tensors.nbytes + saved)
            save_model(model, task, folder, write_more)
            if self._check:
                self._check.check(folder, model, self._check.outputs(model))
                self._check = None
        except NotAsTrainedError:
            raise
        except TrainError as error:
            return error.message
        except (OSError, SafetensorError) as error:
            return first_line(error)
        finally:
            exhaust(pieces)
            optimizer.attach()
        self._saved.append(folder)
        if self._limit is not None:
            best = None if state.best_step is None else self.of(state.best_step)
            self._saved = keep_newest(self._saved, self._limit, best)
        return ""

    def load_best(self, model: PreTrainedModel, state: TrainState, folders: Sequence[Path]) -> bool:
        """Load the best checkpoint into `model`, from any host; every rank must call this method.

        If the recipe keeps only one checkpoint, this method removes all other checkpoints.

        Args:
            model: model to load into; its weights must be in fp32 on the ranks that use it.
            folders: folders on this host that may contain the checkpoint.

        Returns:
            True if the weights were loaded; otherwise the model is unchanged.
        """
        if state.best_step is None:
            return False
        places = [folder / self.of(state.best_step).name for folder in folders]
        place = next((place for place in places if place.exists()), None)
        held: list[bool] = gather_over_ranks(place is not None)
        if True not in held:
            what = f"the best model, of step {state.best_step}, could not be saved or is lost"
            self._log.notice(f"{what}: using the model of the last step")
            return False
        source = held.index(True)
        saved: Mapping[str, torch.Tensor] = {}
        if place and self._world.rank == source:
            saved = saved_weights(model, place)
        for name, tensor in trained_weights(model).items():
            dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
            values = saved.get(name, torch.empty_like(tensor, dtype=dtype))
            dist.broadcast(values, source)
            tensor.copy_(values)
        if self._limit == 1:
            for folder in self._saved if self._writes else ():
                if folder != self.of(state.best_step):
                    remove(folder)
        return True


def check_space(folder: Path, nbytes: int) -> None:
    """Check that the disk has space for a model or checkpoint of `nbytes` bytes.

    Raises:
        TrainError: there is too little space.
    """
    needed = MARGIN * nbytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        available, required = free_and_needed(free, needed)
        raise TrainError(
            f"the disk of {folder} has {available} free, but saving the model needs {required}",
            "free some space there, or set the cluster up in another folder: "
            "ftcluster setup -e ftcluster_prefix=DIR",
        )


def save_model(
    model: PreTrainedModel,
    task: Task,
    folder: Path,
    write_more: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write model and tokenizer for `from_pretrained`.

    `folder` gets its final name only after all its files are written and synced.

    Args:
        model: model in fp32.
        folder: target folder, which is replaced if it exists.
        write_more: function that writes further files into the folder.

    Raises:
        TrainError: the disk is full; the incomplete files are removed.
    """
    try:
        model.should_save_on_this_rank = _always
        with new_folder(folder) as partial:
            if adapted_layers(model):
                save_adapters(model, task.recipe, partial)
            else:
                model.save_pretrained(partial)
            task.tokenizer.save_pretrained(partial)
            task.write_files(model, partial)
            text = json.dumps(
                trained_document(task.used_as, task.columns, head_fields(model)), indent=2
            )
            (partial / FILE).write_text(f"{text}\n", encoding="utf-8")
            if task.trained_rows and task.trained_rows.exists():
                shutil.copyfile(task.trained_rows, partial / ROWS)
            write_more(partial)
            for path in partial.rglob("*"):
                if path.is_file():
                    # safetensors makes its files readable only for their owner
                    path.chmod(0o666 & ~GROUP_READS)
    except (OSError, SafetensorError) as error:
        if "No space left" not in str(error):
            raise
        raise TrainError(
            f"the disk of {folder.parent} is full, so the model could not be saved",
            "free some space there and train again",
        ) from error


def _always(_: bool) -> bool:
    """Return True, so that both writing ranks save; transformers 5.23 would save only on rank 0."""
    return True


def keep_newest(saved: Sequence[Path], limit: int, best: Path | None) -> list[Path]:
    """Remove the oldest checkpoints until at most `limit` are left, and return the others.

    The best and the newest checkpoint are never removed.
    """
    removable = [folder for folder in saved[:-1] if folder != best]
    removed = removable[: max(0, len(saved) - limit)]
    for folder in removed:
        remove(folder)
    return [folder for folder in saved if folder not in removed]
