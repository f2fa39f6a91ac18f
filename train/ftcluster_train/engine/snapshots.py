"""Recent states of a training, for a restart after a failure."""

import copy
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ftcluster_train.comm.world import World, folder_led, gather_over_ranks
from ftcluster_train.engine.optim.base import OptimizerStep, State, exhaust
from ftcluster_train.engine.state_files import write_state
from ftcluster_train.engine.train_state import TrainState
from ftcluster_train.errors import first_line
from ftcluster_train.io.fsync import new_folder, remove, remove_leftovers
from ftcluster_train.io.machine import free_memory

COST_SHARE = 0.01  # maximum share of the training's time
LAST_PRIORITY = 19  # niceness, as for nice(1)
MEMORY_SHARE = 0.1  # maximum share of the free memory for the copy of the state


class Snapshots:
    """The recent states on each host, written in the background.

    The training waits only for the copy in memory; a thread writes it to the disk. If ranks have
    different pieces, the thread gathers them, so that each host writes the whole state.

    Args:
        folder: folder of the snapshots; only the newest stays.
        seconds: minimum time between snapshots, longer if they would cost more than COST_SHARE of
            the time; 0 for no snapshots.
        sharded: True if ranks have different pieces, so that all ranks take part in each snapshot.
        notice: function that takes a notice for the user.
        shared: True if all hosts share the folder, so that only rank 0 writes.

    Attributes:
        costs: seconds by which each snapshot delayed the training: waiting, the writer's CPU time
            divided by this rank's threads, and waiting for the other ranks' pieces.
    """

    def __init__(
        self, folder: Path, seconds: float, sharded: bool, world: World,
        notice: Callable[[str], None], shared: bool = False,
    ) -> None:  # fmt: skip
        self._folder, self._notice = folder, notice
        self._writes = folder_led(world.rank, shared) is not None
        self._seconds = seconds if self._writes or sharded else 0.0
        self._problem = ""  # reason why the last snapshot could not be written
        self._pause, self._threads = seconds, torch.get_num_threads()
        self.costs: list[float] = []
        if seconds and self._writes:
            remove_leftovers(folder)
        # a group of its own, because gathering overlaps with the training's collectives
        self._group = dist.new_group(backend="gloo") if seconds and sharded else None
        self._last = time.monotonic()
        self._writer: threading.Thread | None = None
        self._copy: State | None = None

    def is_pausing(self) -> bool:
        """Return True if it is too early for this rank's next snapshot, or one is being written."""
        if not self._seconds:
            return False
        early = time.monotonic() - self._last < self._pause
        return early or (self._writer is not None and self._writer.is_alive())

    def take(self, optimizer: OptimizerStep, train_state: TrainState) -> None:
        """Take a snapshot; every rank calls it, once no rank is pausing."""
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
        """Return True if there is memory for the copy."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if tensors.sharded else 1
        size = ranks * tensors.own_nbytes  # size of all copies on this host
        fits = size <= MEMORY_SHARE * free_memory()
        if tensors.sharded:
            fits = all(gather_over_ranks(fits))
        if not fits:
            share = f"{size / 1e6:.0f} MB are more than {MEMORY_SHARE:.0%} of the free memory"
            self._notice(f"no snapshots are taken: {share}; training.save_strategy saves")
        return fits

    def _write(self, tensors: State, state: TrainState, waited: float) -> None:
        """Write a snapshot; a full disk is only reported, and the training continues."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LAST_PRIORITY)  # of this thread
        gathered = tensors.gather_seconds
        try:
            self._write_files(tensors, state)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError if a rank is lost
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
            self._notice(self._problem)
            self._problem = ""
