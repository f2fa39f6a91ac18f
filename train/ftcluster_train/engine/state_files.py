"""The whole state of a training on disk.

A state is a folder: `state.safetensors` (flat fp32 weights and what AdamW keeps of the gradients,
and saved buffers), `state.json` with the TrainState, and last `manifest.json` with the SHA-256 of
every file of the folder. It is that of all ranks, however many there are and whether each has all
of it or pieces (see `ftcluster_train.engine.optim.state`).
"""

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ftcluster_common.given_files import GivenFileError, read_json
from ftcluster_train.engine.optim.state import Header
from ftcluster_train.engine.train_state import TrainState

TENSORS, NUMBERS, MANIFEST = "state.safetensors", "state.json", "manifest.json"
PIECE = 4 << 20  # bytes that are hashed and written at once
# of what a model computes with and keeps in buffers, in the format safetensors
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write_state(
    folder: Path, header: Header, pieces: Iterable[torch.Tensor], state: TrainState
) -> None:
    """Write a state into a folder that is not visible yet; the manifest covers all its files.

    Args:
        header: of the tensors.
        pieces: the elements of all tensors, in that order.
    """
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
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        return {}, f"{path} cannot be read: {error}"
    if {name: list(tensor.shape) for name, tensor in tensors.items()} != {
        name: shape for name, (_, shape) in header.items()
    }:
        return {}, f"{path} is of another model"
    return tensors, ""


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
