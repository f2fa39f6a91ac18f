"""Snapshots: recent training states on disk, from which a run restarts after a failure."""

import copy
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ftcluster_common.protocol.events import SNAPSHOT
from ftcluster_train.comm.world import World, folder_led, gather_over_ranks
from ftcluster_train.engine.optim.base import OptimizerStep, State, exhaust
from ftcluster_train.engine.state_files import write_state
from ftcluster_train.engine.train_state import TrainState
from ftcluster_train.errors import first_line
from ftcluster_train.io.fsync import new_folder, remove, remove_leftovers
from ftcluster_train.io.machine import free_memory

COST_SHARE = 0.01  # maximum fraction of the training time that snapshots may take
LAST_PRIORITY = 19  # niceness of the writing thread, as for nice(1)
MEMORY_SHARE = 0.1  # maximum fraction of the free memory that the copies of the state may take


class Snapshots:
    """Writes recent training states on each host, in a background thread.

    Training waits only while the state is copied in memory. The thread then writes the copy to
    disk. If the state is divided among the ranks, the thread first gathers the pieces, so that each
    host writes the whole state.

    Args:
        folder: folder for the snapshots; only the newest snapshot is kept.
        seconds: minimum time between snapshots in seconds; 0 disables snapshots. The actual time is
            longer if snapshots would otherwise take more than COST_SHARE of the training time.
        sharded: True if the state is divided among the ranks, so that every rank must call `take`.
        notice: `ProgressLog.notice`.
        shared: True if all hosts share the folder, so that only rank 0 writes.

    Attributes:
        costs: estimated seconds by which each snapshot delayed the training. The delay has three
            parts: the time for the copy, the thread's CPU time divided by this rank's number of
            threads, and the time for gathering pieces.
    """

    def __init__(
        self, folder: Path, seconds: float, sharded: bool, world: World,
        notice: Callable[..., None], shared: bool = False,
    ) -> None:  # fmt: skip
        self._folder, self._notice = folder, notice
        self._writes = folder_led(world.rank, shared) is not None
        self._seconds = seconds if self._writes or sharded else 0.0
        self._problem = ""  # error of the last snapshot, or ""
        self._pause, self._threads = seconds, torch.get_num_threads()
        self.costs: list[float] = []
        if seconds and self._writes:
            remove_leftovers(folder)
        # a separate group, because gathering overlaps with the training's collectives
        self._group = dist.new_group(backend="gloo") if seconds and sharded else None
        self._last = time.monotonic()
        self._writer: threading.Thread | None = None
        self._copy: State | None = None

    def is_pausing(self) -> bool:
        """Return True if no snapshot is due on this rank, or a snapshot is being written."""
        if not self._seconds:
            return False
        early = time.monotonic() - self._last < self._pause
        return early or (self._writer is not None and self._writer.is_alive())

    def take(self, optimizer: OptimizerStep, train_state: TrainState) -> None:
        """Take a snapshot; every rank must call this once `is_pausing` is False on all ranks."""
        if not self._seconds:
            return
        self._last = time.monotonic()
        self._tell()
        tensors = optimizer.state()
        if not tensors or not (self._copy or self._fits(tensors)):
            self._seconds = 0.0
            return
        self._copy = self._copy or tensors.like()
        began = time.monotonic()
        self._copy.copy(tensors)
        work = (self._copy, copy.deepcopy(train_state), time.monotonic() - began)
        self._writer = threading.Thread(target=self._write, args=work, daemon=True)
        self._writer.start()

    def _fits(self, tensors: State) -> bool:
        """Return True if this host has enough free memory for the copies of the state."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if tensors.sharded else 1
        size = ranks * tensors.own_nbytes  # size of all copies on this host
        fits = size <= MEMORY_SHARE * free_memory()
        if tensors.sharded:
            fits = all(gather_over_ranks(fits))
        if not fits:
            share = (
                f"they need {size / 1e6:.0f} MB, more than {MEMORY_SHARE:.0%} of the free memory"
            )
            self._notice(
                f"no snapshots are taken: {share}; for checkpoints: training.save_strategy=epoch"
            )
        return fits

    def _write(self, tensors: State, state: TrainState, waited: float) -> None:
        """Write a snapshot; if this fails, keep the error for a notice."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LAST_PRIORITY)  # this thread
        gathered = tensors.gather_seconds
        try:
            self._write_files(tensors, state)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError if a rank fails
            self._problem = f"no snapshot of step {state.step}: {first_line(error)}"
        gathering = tensors.gather_seconds - gathered
        self.costs.append(waited + time.thread_time() / self._threads + gathering)
        self._pause = max(self._seconds, self.costs[-1] / COST_SHARE)

    def _write_files(self, tensors: State, state: TrainState) -> None:
        final = self._folder / f"snapshot-{state.step}"
        pieces = tensors.pieces(self._group)
        try:
            if self._writes:
                with new_folder(final) as partial:
                    write_state(partial, tensors.header, pieces, state)
                for older in self._folder.glob("snapshot-*[0-9]"):
                    if older != final:
                        remove(older)
        finally:
            exhaust(pieces)

    def wait(self) -> None:
        """Wait until the current snapshot is on the disk."""
        if self._writer:
            self._writer.join()
        self._tell()

    def _tell(self) -> None:
        if self._problem:
            self._notice(self._problem, failed_save=SNAPSHOT)
            self._problem = ""
