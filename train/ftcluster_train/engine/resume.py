"""The whole state of a training on disk, and going on from it.

A state is a folder: `state.safetensors` (flat fp32 weights and what AdamW keeps of the gradients,
and saved buffers), `state.json`, and last `manifest.json` with the SHA-256 of every file of the
folder. It is that of all ranks, however many there are and whether each has all of it or pieces
(see `ftcluster_train.engine.optim.state`), so one rank's files are enough: it sends them to the
others.
"""

import contextlib
import hashlib
import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file

from ftcluster_common.given_files import GivenFileError, read_json
from ftcluster_train.comm.world import World, folder_led, gather_over_ranks, host_led
from ftcluster_train.engine.optim.optimizer_step import OptimizerStep
from ftcluster_train.engine.optim.state import Header, State, exhaust
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.io.fsync import new_folder, remove, remove_leftovers
from ftcluster_train.io.memory import free_memory

TENSORS, POSITION, MANIFEST = "state.safetensors", "state.json", "manifest.json"
COST_SHARE = 0.01  # of the training's time
LAST_PRIORITY = 19  # as nice(1)
MEMORY_SHARE = 0.1  # of the free memory: a larger state is not copied for a snapshot
PIECE = 4 << 20  # bytes that are hashed and written at once
# of what a model computes with and keeps in buffers, in the format safetensors
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass
class Position:
    """Where a training is.

    Attributes:
        samples: training samples done, of all ranks.
        seconds: of training, without evaluations and checkpoints.
        best_metric: name of the metric that the best evaluation is chosen by.
        best_metrics: of the best evaluation.
        best_step: of the best evaluation; None before there is one.
        settings: what the weights depend on besides the state, by name.
    """

    step: int = 0
    samples: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best_metric: str = ""
    best_metrics: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def write_state(
    folder: Path, header: Header, pieces: Iterable[torch.Tensor], position: Position
) -> None:
    """Write a state into a folder that is not visible yet; the manifest covers all its files.

    Args:
        header: see State.
        pieces: the elements of all tensors, in that order.
    """
    others = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {TENSORS: _write_tensors(folder / TENSORS, header, pieces)}
    (folder / POSITION).write_text(json.dumps(asdict(position)) + "\n", encoding="utf-8")
    for path in (*others, folder / POSITION):
        manifest[str(path.relative_to(folder))] = _sha256(path)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _write_tensors(path: Path, header: Header, pieces: Iterable[torch.Tensor]) -> str:
    """Write a file in the format safetensors; returns its SHA-256.

    Piece by piece, because safetensors needs all tensors at once, and holds up the other threads.
    """
    entries: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in header.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        head = memoryview(len(text).to_bytes(8, "little") + text)
        for data in itertools.chain([head], map(_bytes_of, pieces)):
            for start in range(0, len(data), PIECE):
                piece = data[start : start + PIECE]
                digest.update(piece)
                file.write(piece)
    return digest.hexdigest()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def newest_state(
    folders: Sequence[Path], damaged: Callable[[Path], None]
) -> tuple[int, Path] | None:
    """The newest state below some folders that is whole.

    Args:
        folders: states, or folders with states in folders NAME-STEP.
        damaged: called with each newer one that is not whole.

    Returns:
        Its step and its folder.
    """
    found = [state for folder in folders for state in _states(folder)]
    for step, path in sorted(found, key=lambda state: -state[0]):
        if is_whole(path):
            return step, path
        damaged(path)
    return None


def _states(folder: Path) -> list[tuple[int, Path]]:
    if (folder / MANIFEST).exists():
        step = 0
        # damaged
        with contextlib.suppress(GivenFileError, KeyError, TypeError, ValueError, OverflowError):
            step = int(read_json(folder / POSITION)["step"])
        return [(step, folder)]
    steps = ((path.name.rpartition("-")[2], path) for path in folder.glob("*-*"))
    return [
        (int(step), path) for step, path in steps if step.isdecimal() and (path / MANIFEST).exists()
    ]


def is_whole(folder: Path) -> bool:
    """Whether every file of a state is as its manifest says."""
    try:
        manifest = read_json(folder / MANIFEST)
        return TENSORS in manifest and all(
            _sha256(folder / name) == digest for name, digest in manifest.items()
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def resume(
    folders: Sequence[Path],
    wanted: str,
    optimizer: OptimizerStep,
    world: World,
    settings: Mapping[str, Any],
    notice: Callable[[str], None],
) -> Position:
    """Put a training where the newest state of any host is; every rank calls it.

    Args:
        folders: where this host has states.
        wanted: what has to have a state, or "".
        settings: of this training, see Position.
        notice: called on every rank with what a user should know.

    Returns:
        A new Position where there is no state.

    Raises:
        TrainError: the state is that of another model, or there is none that is wanted.
    """
    damaged: list[str] = []
    found = None
    if host_led(world.rank) is not None:  # the other ranks of a host have the same folders
        found = newest_state(folders, lambda folder: damaged.append(str(folder)))
    own, path = found or (0, None)
    by_rank: list[tuple[int, list[str]]] = gather_over_ranks((own, damaged))
    for rank, (_, names) in enumerate(by_rank):
        for name in names:
            notice(f"{name} on the host of rank {rank} is damaged and is not used")
    steps = [step for step, _ in by_rank]
    if max(steps) == 0 and wanted:
        raise TrainError(
            f"{wanted} has no checkpoint of ftcluster that is whole, on any host",
            "to start from the weights of a model folder: --model DIR",
        )
    if max(steps) == 0:
        return Position(settings=dict(settings))
    source = steps.index(max(steps))
    state = optimizer.state()
    assert state is not None  # the control node does not resume with IPEX
    problem, text = "", "{}"
    values: dict[str, torch.Tensor] = {}
    if world.rank == source and path:
        values, problem = _read(path / TENSORS, state.header)
        text = (path / POSITION).read_text(encoding="utf-8")
    problem, text = gather_over_ranks((problem, text))[source]
    if problem:
        raise TrainError(f"the training cannot be resumed: {problem}", "start it anew")
    state.load(values, source)
    position = Position(**json.loads(text))
    optimizer.state_loaded(position.step)
    changed = [
        f"{name} from {before} to {settings[name]}"
        for name, before in position.settings.items()
        if settings.get(name, before) != before
    ]
    differs = f"; changed since then: {', '.join(changed)}" if changed else ""
    notice(f"resumed after step {position.step}{differs}")
    return replace(position, settings=dict(settings))


def _read(path: Path, header: Header) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors of a file, read when they are used; and why it cannot be used, or ""."""
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        return {}, f"{path} cannot be read: {error}"
    if {name: list(one.shape) for name, one in found.items()} != {
        name: shape for name, (_, shape) in header.items()
    }:
        return {}, f"{path} is of another model"
    return found, ""


class Snapshots:
    """Recent states of a host's own, written beside the training.

    The training waits for the copy in memory only; a thread writes it to the disk. Where ranks have
    different pieces, the thread gathers them, so that each host writes the whole state.

    Args:
        folder: where they are; the newest one stays.
        seconds: between two, or longer so that they cost at most COST_SHARE of the time; 0: none.
        sharded: whether ranks have different pieces; each rank makes it at the same time then.
        notice: called with what a user should know.
        shared: whether all hosts have the same folder; rank 0 writes then, for all of them.

    Attributes:
        costs: seconds by which each has made the training longer: that it waited, the writer's CPU
            time over the threads of this rank, and what it waited for the other ranks' pieces.
    """

    def __init__(
        self, folder: Path, seconds: float, sharded: bool, world: World,
        notice: Callable[[str], None], shared: bool = False,
    ) -> None:  # fmt: skip
        self._folder, self._notice = folder, notice
        self._writes = folder_led(world.rank, shared) is not None
        self._seconds = seconds if self._writes or sharded else 0.0
        self._problem = ""  # why the last one could not be written
        self._pause, self._threads = seconds, torch.get_num_threads()
        self.costs: list[float] = []
        if seconds and self._writes:
            remove_leftovers(folder)
        # beside the collectives of the training, so not on the same connections
        self._group = dist.new_group(backend="gloo") if seconds and sharded else None
        self._last = time.monotonic()
        self._writer: threading.Thread | None = None
        self._copy: State | None = None

    def is_pausing(self) -> bool:
        """Whether it is too early for the next one on this rank, or one is being written."""
        if not self._seconds:
            return False
        early = time.monotonic() - self._last < self._pause
        return early or (self._writer is not None and self._writer.is_alive())

    def take(self, optimizer: OptimizerStep, position: Callable[[], Position]) -> None:
        """Take a snapshot; every rank calls it, once no rank is pausing."""
        if not self._seconds:
            return
        self._last = time.monotonic()
        self._tell()
        state = optimizer.state()
        if not state or not (self._copy or self._fits(state)):
            self._seconds = 0.0
            return
        self._copy = self._copy or state.like()
        began = time.monotonic()
        self._copy.copy(state)
        work = (self._copy, position(), time.monotonic() - began)
        self._writer = threading.Thread(target=self._write, args=work, daemon=True)
        self._writer.start()

    def _fits(self, state: State) -> bool:
        """Whether there is memory for the copy."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if state.sharded else 1
        size = ranks * state.own_nbytes  # copied on this host
        fits = size <= MEMORY_SHARE * free_memory()
        if state.sharded:
            fits = all(gather_over_ranks(fits))
        if not fits:
            share = f"{size / 1e6:.0f} MB are more than {MEMORY_SHARE:.0%} of the free memory"
            self._notice(f"no snapshots are taken: {share}; training.save_strategy saves")
        return fits

    def _write(self, copy: State, position: Position, waited: float) -> None:
        """A full disk costs the snapshots, not the training."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LAST_PRIORITY)  # of this thread
        gathered = copy.gather_seconds
        try:
            self._write_files(copy, position)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError where a rank is lost
            self._problem = f"no snapshot of step {position.step}: {first_line(error)}"
        gathering = copy.gather_seconds - gathered
        self.costs.append(waited + time.thread_time() / self._threads + gathering)
        self._pause = max(self._seconds, self.costs[-1] / COST_SHARE)

    def _write_files(self, copy: State, position: Position) -> None:
        final = self._folder / f"snapshot-{position.step}"
        pieces = copy.pieces(self._group)
        try:
            if self._writes:
                with new_folder(final) as partial:
                    write_state(partial, copy.header, pieces, position)
                for older in self._folder.glob("snapshot-*[0-9]"):
                    if older != final:
                        remove(older)
        finally:
            exhaust(pieces)

    def wait(self) -> None:
        """Until the one that is being written is on the disk."""
        if self._writer:
            self._writer.join()
        self._tell()

    def _tell(self) -> None:
        if self._problem:
            self._notice(self._problem)
            self._problem = ""


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
