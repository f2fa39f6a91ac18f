"""Save the complete training state to disk, and resume training from a saved state.

A state is a folder with four files:

- `state.safetensors` contains the flat fp32 weights, AdamW's moments and the saved buffers.
- `state.json` contains the TrainState.
- `format.json` contains the format number.
- `manifest.json` contains the SHA-256 of all other files in the folder, and is written last.

A state can be loaded with any number of ranks, and with or without a sharded optimizer (see
`ftcluster_train.engine.optim.base`).
"""

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ftcluster_common.given_files import GivenFileError, read_form, read_json
from ftcluster_common.protocol.formats import STATE, opened, stamped
from ftcluster_common.protocol.job import Job
from ftcluster_train.comm.world import World, gather_over_ranks, host_led
from ftcluster_train.engine.optim.base import Header, OptimizerStep
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.train_state import TrainState
from ftcluster_train.errors import TrainError

TENSORS, NUMBERS, MANIFEST = "state.safetensors", "state.json", "manifest.json"
NUMBER = STATE.name  # a separate file: older versions expect a file for each manifest entry
PIECE = 4 << 20  # number of bytes per hash update and write
# safetensors' names of the dtypes of weights and buffers
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
SHOWN = 3  # maximum number of parameters that a message lists


def write_state(
    folder: Path, header: Header, pieces: Iterable[torch.Tensor], state: TrainState
) -> None:
    """Write a state into a folder that still has its temporary name.

    The manifest also lists all files that are already in the folder.

    Args:
        header: dtypes and shapes of the tensors.
        pieces: elements of all tensors, in the order of the header.
    """
    (folder / NUMBER).write_text(f"{json.dumps(stamped(STATE, {}))}\n", encoding="utf-8")
    other_files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {TENSORS: _write_tensors(folder / TENSORS, header, pieces)}
    (folder / NUMBERS).write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
    for path in (*other_files, folder / NUMBERS):
        manifest[str(path.relative_to(folder))] = _sha256(path)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _write_tensors(path: Path, header: Header, pieces: Iterable[torch.Tensor]) -> str:
    """Write tensors to a safetensors file, and return the SHA-256 of the file.

    This function writes the file itself, in pieces. The package safetensors would need all tensors
    in memory at once, and would block other threads.
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
    """Return the newest complete state in some folders.

    Args:
        folders: folders that are states, or that contain states as subfolders NAME-STEP.
        damaged: function to call with the folder of each newer state that is damaged.

    Returns:
        The step and the folder of the state, or None if there is no complete state.
    """
    states = [state for folder in folders for state in _states(folder)]
    for step, path in sorted(states, key=lambda state: -state[0]):
        if is_whole(path):
            return step, path
        damaged(path)
    return None


def _states(folder: Path) -> list[tuple[int, Path]]:
    if (folder / MANIFEST).exists():
        step = 0
        # a damaged state counts as step 0; `is_whole` rejects it later
        with contextlib.suppress(GivenFileError, KeyError, TypeError, ValueError, OverflowError):
            step = int(read_json(folder / NUMBERS)["step"])
        return [(step, folder)]
    steps = ((path.name.rpartition("-")[2], path) for path in folder.glob("*-*"))
    return [
        (int(step), path) for step, path in steps if step.isdecimal() and (path / MANIFEST).exists()
    ]


def is_whole(folder: Path) -> bool:
    """Return True if every file of a state matches its manifest."""
    try:
        manifest = read_json(folder / MANIFEST)
        return TENSORS in manifest and all(
            _sha256(folder / name) == digest for name, digest in manifest.items()
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def read_tensors(folder: Path, header: Header) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors of a state, and the reason why they cannot be used ("" if they can).

    A tensor is read from the disk only when it is used.
    """
    path = folder / TENSORS
    try:
        check_format(folder)
        tensors = load_file(path)
    except GivenFileError as error:
        return {}, str(error)
    except (OSError, SafetensorError) as error:
        return {}, f"{path} cannot be read: {error}"
    if {name: list(tensor.shape) for name, tensor in tensors.items()} != {
        name: shape for name, (_, shape) in header.items()
    }:
        return {}, f"{path} belongs to another model"
    return tensors, ""


def check_format(folder: Path) -> None:
    """Check that this version of ftcluster can read a state.

    A state without format.json has format 0.

    Raises:
        GivenFileError: a newer ftcluster wrote the state.
    """
    if (folder / NUMBER).exists():
        read_form(folder / NUMBER, lambda document: opened(STATE, document))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def state_folders(job: Job) -> list[Path]:
    """Return this host's folders with states of this run and of the runs that it continues."""
    return [run / name for run in job.run_dirs for name in ("checkpoints", "snapshots")]


def resume(
    job: Job, optimizer: OptimizerStep, world: World, new: TrainState, log: ProgressLog
) -> TrainState:
    """Load the newest state that any host has; every rank must call this function.

    A rank that has the newest state sends the tensors to all ranks, so it is enough if one host has
    the state.

    Args:
        new: state of this run before its first step.

    Returns:
        The loaded state, or `new` if there is no saved state.

    Raises:
        TrainError: the state belongs to another model, or the job needs a state that is missing.
    """
    start = str(job.recipe.training.resume_from_checkpoint or "")
    needed = start or (f"run {job.resume[0]}" if job.resume and job.must_resume else "")
    folders = [*state_folders(job), *([Path(start)] if start else [])]
    damaged: list[str] = []
    newest = None
    if (
        host_led(world.rank) is not None
    ):  # one rank per host checks, because the ranks of a host share the folders
        newest = newest_state(folders, lambda folder: damaged.append(str(folder)))
    step, path = newest or (0, None)
    by_rank: list[tuple[int, list[str]]] = gather_over_ranks((step, damaged))
    for rank, (_, names) in enumerate(by_rank):
        for name in names:
            log.notice(f"{name} on the host of rank {rank} is damaged and is ignored")
    steps = [step for step, _ in by_rank]
    if max(steps) == 0 and needed:
        raise TrainError(
            f"no host has an undamaged checkpoint for {needed}",
            "to start from the weights of a model folder: --model DIR",
        )
    if max(steps) == 0:
        return new
    source = steps.index(max(steps))
    tensors = optimizer.state()
    assert tensors is not None  # with IPEX it is None, but such runs are never resumed
    problem, text = "", "{}"
    values: dict[str, torch.Tensor] = {}
    if world.rank == source and path:
        values, problem = read_tensors(path, tensors.header)
        text = (path / NUMBERS).read_text(encoding="utf-8")
    problem, text = gather_over_ranks((problem, text))[source]
    # another version's state.json may have other fields
    state = new if problem else TrainState(**json.loads(text))
    if problem := problem or _other_layout(state.layout, new.layout):
        raise TrainError(f"the training cannot be resumed: {problem}", "start a new run")
    tensors.load(values, source)
    optimizer.state_loaded(state.step)
    changed = [
        f"{name} from {previous} to {new.settings[name]}"
        for name, previous in state.settings.items()
        if new.settings.get(name, previous) != previous
    ]
    differs = f"; changed since then: {', '.join(changed)}" if changed else ""
    log.notice(f"resumed after step {state.step}{differs}")
    return replace(state, settings=new.settings)


def _other_layout(saved: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a description of how a state's parameters differ from the model's, or "".

    Parameters of the same total size may differ in names and shapes.
    """
    if list(saved) == list(wanted):
        return ""
    lost = [name for name in saved if name not in wanted]
    more = [name for name in wanted if name not in saved]
    if not lost and not more:
        return "its state has the parameters of this model in another order"
    differences = [
        f"{what} {', '.join(names[:SHOWN])}" + (" ..." if len(names) > SHOWN else "")
        for what, names in (("with", lost), ("without", more))
        if names
    ]
    return f"its state belongs to another model, {' and '.join(differences)}"
