"""The whole state of a training on disk, and going on from it.

A state is a folder: `state.safetensors` (flat fp32 weights and what AdamW keeps of the gradients,
and saved buffers), `state.json` with the TrainState, and last `manifest.json` with the SHA-256 of
every file of the folder; `format.json` has the format of these. It is that of all ranks, however
many there are and whether each has all of it or pieces (see `ftcluster_train.engine.optim.base`).
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
NUMBER = STATE.name  # a file of its own: older versions take each entry of the manifest for a file
PIECE = 4 << 20  # bytes that are hashed and written at once
# of what a model computes with and keeps in buffers, in the format safetensors
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
SHOWN = 3  # names of parameters in a message


def write_state(
    folder: Path, header: Header, pieces: Iterable[torch.Tensor], state: TrainState
) -> None:
    """Write a state into a folder that is not visible yet; the manifest covers all its files.

    Args:
        header: of the tensors.
        pieces: the elements of all tensors, in that order.
    """
    (folder / NUMBER).write_text(f"{json.dumps(stamped(STATE, {}))}\n", encoding="utf-8")
    other_files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {TENSORS: _write_tensors(folder / TENSORS, header, pieces)}
    (folder / NUMBERS).write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
    for path in (*other_files, folder / NUMBERS):
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
    states = [state for folder in folders for state in _states(folder)]
    for step, path in sorted(states, key=lambda state: -state[0]):
        if is_whole(path):
            return step, path
        damaged(path)
    return None


def _states(folder: Path) -> list[tuple[int, Path]]:
    if (folder / MANIFEST).exists():
        step = 0
        # damaged
        with contextlib.suppress(GivenFileError, KeyError, TypeError, ValueError, OverflowError):
            step = int(read_json(folder / NUMBERS)["step"])
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


def read_tensors(folder: Path, header: Header) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors of a state, read when they are used; and why they cannot be used, or ""."""
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
        return {}, f"{path} is of another model"
    return tensors, ""


def check_format(folder: Path) -> None:
    """Check that this version reads a state; one without the file has format 0.

    Raises:
        GivenFileError: a newer ftcluster has written it.
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
    """Where this host may have states of this run, and of those that it continues."""
    return [run / name for run in job.run_dirs for name in ("checkpoints", "snapshots")]


def resume(
    job: Job, optimizer: OptimizerStep, world: World, new: TrainState, log: ProgressLog
) -> TrainState:
    """Put a training where the newest state of any host is; every rank calls it.

    One rank sends its tensors to the others, so one host with the state is enough.

    Args:
        new: of this training before its first step.

    Returns:
        `new` where there is no state.

    Raises:
        TrainError: the state is that of another model, or there is none and the job needs one.
    """
    start = str(job.recipe.training.resume_from_checkpoint or "")
    needed = start or (f"run {job.resume[0]}" if job.resume and job.must_resume else "")
    folders = [*state_folders(job), *([Path(start)] if start else [])]
    damaged: list[str] = []
    newest = None
    if host_led(world.rank) is not None:  # the other ranks of a host have the same folders
        newest = newest_state(folders, lambda folder: damaged.append(str(folder)))
    step, path = newest or (0, None)
    by_rank: list[tuple[int, list[str]]] = gather_over_ranks((step, damaged))
    for rank, (_, names) in enumerate(by_rank):
        for name in names:
            log.notice(f"{name} on the host of rank {rank} is damaged and is not used")
    steps = [step for step, _ in by_rank]
    if max(steps) == 0 and needed:
        raise TrainError(
            f"{needed} has no checkpoint of ftcluster that is whole, on any host",
            "to start from the weights of a model folder: --model DIR",
        )
    if max(steps) == 0:
        return new
    source = steps.index(max(steps))
    tensors = optimizer.state()
    assert tensors is not None  # the control node does not resume with IPEX
    problem, text = "", "{}"
    values: dict[str, torch.Tensor] = {}
    if world.rank == source and path:
        values, problem = read_tensors(path, tensors.header)
        text = (path / NUMBERS).read_text(encoding="utf-8")
    problem, text = gather_over_ranks((problem, text))[source]
    # the numbers of a newer version may have other fields
    state = new if problem else TrainState(**json.loads(text))
    if problem := problem or _other_layout(state.layout, new.layout):
        raise TrainError(f"the training cannot be resumed: {problem}", "start it anew")
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
    """In which parameters a state is not that of this model, or ""; sizes alone may be the same."""
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
    return f"its state is of another model, {' and '.join(differences)}"
