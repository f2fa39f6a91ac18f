"""What is prepared on a host for its ranks: inputs.json and token samples, which later runs find.

Token samples are written once per host, and memory-mapped by each of its ranks. A folder has
`about.json` and for each column the values of all samples (`<name>.values`) and the end of each
sample (`<name>.ends`, 64 bits each). The files are read on the machine that
wrote them, so they have its byte order.

PREFIX/cache/tokens has a folder for each tokenised data set; its name is a hash of all that the
tokens depend on. A folder that exists is complete. Standard library only.
"""

import hashlib
import json
import mmap
import os
import shutil
import socket
import sys
import sysconfig
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ftcluster_common
from ftcluster_common.given_files import GivenFileError, read_form
from ftcluster_common.models.model_package import PACKAGE
from ftcluster_common.protocol.job import Job, read_job
from ftcluster_common.protocol.launch import LAUNCH_FILE, PLANNED_FILE
from ftcluster_common.recipe import BY_TYPE, GENERATED
from ftcluster_train.io.fsync import ACCOUNT_ONLY, sync_tree, write_atomically

ENDS = "q"
FLUSH_AT = 1 << 16  # values in memory per column
KEPT_SETS = 8  # data sets; the least recently used ones are removed
KEPT_INPUTS = 64  # of recipes with these
NOTICES_FILE = "notices.json"
# fields of `training` that neither tokens nor their report depend on
OF_STEPS = frozenset(
    {"adam_beta1", "adam_beta2", "adam_epsilon", "eval_steps", "gradient_accumulation_steps",
     "learning_rate", "logging_first_step", "logging_steps", "lr_scheduler_kwargs",
     "lr_scheduler_type", "max_grad_norm", "max_steps", "num_train_epochs", "report_to",
     "resume_from_checkpoint", "run_name", "save_steps", "warmup_ratio", "warmup_steps",
     "weight_decay"}
)  # fmt: skip
# weights and compiled Python do not change the tokens
NO_TOKEN_FILES = frozenset({".bin", ".h5", ".msgpack", ".onnx", ".pt", ".pyc", ".safetensors"})


@dataclass(frozen=True)
class Inputs:
    """Where the ranks of a host find model and data.

    Attributes:
        model: a folder for `from_pretrained`, or `config:TYPE`.
        tokenizer: a folder for `from_pretrained`.
        samples: the folder with a folder of token samples for each split.
        teacher: a folder for `from_pretrained`, or ""; likewise adapters, of the model.
        report: what the samples say of the data, see `engine.data_report`.
        notices: what to tell the user, such as that samples were truncated.
        commits: of the Hub, of "model" and "data", where these are from there.
    """

    model: str
    tokenizer: str
    samples: str
    notices: list[str]
    report: dict[str, Any]
    teacher: str = ""
    commits: dict[str, str] = field(default_factory=dict)
    adapters: str = ""


def write_inputs(run_dir: Path, inputs: Inputs) -> None:
    """Write `run_dir`/inputs.json; on the head the launch is then one that may be started."""
    text = json.dumps(asdict(inputs)) + "\n"
    partial = run_dir / ".inputs.json.partial"
    partial.write_text(text, encoding="utf-8")
    partial.rename(run_dir / "inputs.json")  # the ranks of another host may be reading it
    if (run_dir / PLANNED_FILE).exists():
        (run_dir / PLANNED_FILE).replace(run_dir / LAUNCH_FILE)


def read_inputs(run_dir: Path) -> Inputs:
    """Read `run_dir`/inputs.json.

    Raises:
        GivenFileError: it is missing or damaged.
    """
    return read_form(run_dir / "inputs.json", lambda data: Inputs(**data))


def reuse_inputs(arguments: Sequence[str]) -> bool:
    """Give a run the inputs of an earlier one, if they would become the same; returns whether.

    They do with the same recipe but for OF_STEPS, the same files of model, tokenizer and data, and
    the same packages. What has only a name on the Hub may have changed there.

    Args:
        arguments: of engine.prepare; nothing is done with others than RUN_DIR and --hub-token.
    """
    if arguments[1:] not in ([], ["--hub-token"]) or arguments[0].startswith("--"):
        return False
    os.umask(ACCOUNT_ONLY)
    try:
        job = read_job(Path(arguments[0]))
        if (path := _inputs_of(job)) is None:
            return False
        inputs, files = read_form(path, lambda data: (Inputs(**data["inputs"]), data["files"]))
        if not (Path(inputs.samples) / NOTICES_FILE).is_file() or files != _files(job, inputs):
            return False
        os.utime(inputs.samples)  # the least recently used ones are removed
        os.utime(path)
    except (GivenFileError, OSError):
        return False
    write_inputs(job.run_dir, inputs)
    return True


def keep_inputs(job: Job, inputs: Inputs) -> None:
    """Keep the inputs of a run for those after it."""
    path = _inputs_of(job)
    if path is None or Path(inputs.tokenizer).is_relative_to(job.run_dir):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"inputs": asdict(inputs), "files": _files(job, inputs)}
    write_atomically(path, json.dumps(document) + "\n")
    _remove_least_recent(path.parent, KEPT_INPUTS)


def _inputs_of(job: Job) -> Path | None:
    """The file with the inputs of such a run; None if names of the recipe are the Hub's."""
    recipe = job.recipe
    known = recipe.model.startswith((BY_TYPE, PACKAGE)) or Path(recipe.model).is_dir()
    known &= all(not one or Path(one).is_dir() for one in (recipe.tokenizer, recipe.teacher))
    if not known or not (recipe.data.startswith(GENERATED) or Path(recipe.data).exists()):
        return None
    fields = job.to_dict()["recipe"]
    training = {name: fields["training"][name] for name in fields["training"].keys() - OF_STEPS}
    packages = [sys.prefix, Path(sysconfig.get_path("purelib")).stat().st_mtime_ns]
    made_of = [{**fields, "training": training}, job.purpose, packages]
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    return job.prefix / "cache" / "inputs" / f"{digest}.json"


def _files(job: Job, inputs: Inputs) -> str:
    """The hash of data, tokenizer and this package; of weights of their names, sizes and times."""
    models = (inputs.model, inputs.adapters, inputs.teacher)
    weights = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in filter(None, models)
        for path in sorted(Path(folder).glob("*"))
        if path.suffix in NO_TOKEN_FILES
    ]
    code = [Path(__file__).parents[1], Path(ftcluster_common.__file__).parent]
    names = (*models, inputs.tokenizer, job.recipe.data)
    read = [Path(name) for name in names if name and Path(name).exists()]
    return token_key({"weights": weights}, [*code, *read])


Sample = dict[str, list[Any]]


def token_kind(vocabulary: int) -> str:
    """The array type code for token numbers below `vocabulary`."""
    return "H" if vocabulary <= 1 << 16 else "i"


class SampleWriter:
    """Writes samples, with little memory.

    Args:
        kinds: the type code of each column, as in the module array.
    """

    def __init__(self, folder: Path, kinds: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._kinds = dict(kinds)
        self._count = 0
        self._digest = hashlib.sha256()
        self._columns = [_ColumnWriter(folder, name, kind) for name, kind in kinds.items()]

    def __len__(self) -> int:
        return self._count

    def add(self, sample: Mapping[str, Sequence[Any]]) -> None:
        """Append a sample: numbers for each column."""
        for column in self._columns:
            self._digest.update(column.add(sample[column.name]))
        self._count += 1

    def close(self, **about: Any) -> None:
        """Close the files; `about` is added to `Samples.about`."""
        for column in self._columns:
            column.close()
        document = {
            **about,
            "count": self._count,
            "kinds": self._kinds,
            "largest": {column.name: column.largest for column in self._columns},
            "sha256": self._digest.hexdigest(),
        }
        _write_about(self._folder, document)


class _ColumnWriter:
    def __init__(self, folder: Path, name: str, kind: str) -> None:
        self.name = name
        self.largest = 0
        self._values, self._ends = array(kind), array(ENDS)
        self._end = 0
        self._files = [(folder / f"{name}.{part}").open("wb") for part in ("values", "ends")]

    def add(self, values: Sequence[Any]) -> bytes:
        """Append a sample's values; returns their bytes."""
        written = array(self._values.typecode, values)
        self._values.extend(written)
        self._end += len(written)
        self._ends.append(self._end)
        self.largest = max(self.largest, *written) if written else self.largest
        if len(self._values) >= FLUSH_AT:
            self._flush()
        return written.tobytes()

    def close(self) -> None:
        self._flush()
        for file in self._files:
            file.close()

    def _flush(self) -> None:
        for file, held in zip(self._files, (self._values, self._ends), strict=True):
            held.tofile(file)
            del held[:]


class Samples(Sequence[Sample]):
    """The samples of a folder that SampleWriter wrote.

    Attributes:
        about: given to the writer; also `sha256` of all values, and by column the `largest`.
    """

    def __init__(self, folder: Path) -> None:
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self._count: int = self.about["count"]
        self._values = {
            name: _mapped(folder / f"{name}.values", kind)
            for name, kind in self.about["kinds"].items()
        }
        self._ends = {name: _mapped(folder / f"{name}.ends", ENDS) for name in self._values}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return {
            name: values[self._begin(name, index) : self._ends[name][index]].tolist()
            for name, values in self._values.items()
        }

    def lengths(self, column: str) -> list[int]:
        """The number of values of each sample in a column."""
        ends = self._ends[column][: self._count].tolist()
        return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]

    def _begin(self, name: str, index: int) -> int:
        begin: int = self._ends[name][index - 1] if index else 0
        return begin


def move_tail(source: Path, target: Path, count: int) -> None:
    """Move the last `count` samples into a new folder."""
    samples = Samples(source)
    left = len(samples) - count
    writer = SampleWriter(target, samples.about["kinds"])
    for index in range(left, len(samples)):
        writer.add(samples[index])
    writer.close()
    _write_about(source, {**samples.about, "count": left})


def _mapped(path: Path, kind: str) -> memoryview:
    with path.open("rb") as file:
        empty = path.stat().st_size == 0  # cannot be mapped
        data = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return memoryview(data).cast(kind)  # type: ignore[call-overload, no-any-return]


def _write_about(folder: Path, document: Mapping[str, Any]) -> None:
    (folder / "about.json").write_text(json.dumps(document) + "\n", encoding="utf-8")


def token_key(settings: Mapping[str, Any], folders: Sequence[Path]) -> str:
    """The hash of what tokens depend on.

    Args:
        folders: with code, data and tokenizer, or files; the names and bytes of all relevant files
            count.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for number, folder in enumerate(folders):
        files = (path for path in (folder, *folder.rglob("*")) if path.is_file())
        for path in sorted(path for path in files if path.suffix not in NO_TOKEN_FILES):
            digest.update(f"\n{number} {path.relative_to(folder)} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
    return digest.hexdigest()


def cached_tokens(
    cache: Path, key: str, make: Callable[[Path], list[str]]
) -> tuple[Path, list[str]]:
    """The folder of the samples, and notices about them.

    Args:
        make: writes the samples into an empty folder; returns notices.
    """
    folder = cache / key
    if not (folder / NOTICES_FILE).is_file():
        partial = cache / f"{key}.{socket.gethostname()}.{os.getpid()}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            notices = make(partial)
            (partial / NOTICES_FILE).write_text(json.dumps(notices), encoding="utf-8")
            sync_tree(partial)
            if not folder.exists():  # another run may have been faster
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    os.utime(folder)
    _remove_least_recent(cache, KEPT_SETS)
    notices = json.loads((folder / NOTICES_FILE).read_text(encoding="utf-8"))
    return folder, notices


def _remove_least_recent(cache: Path, kept: int) -> None:
    entries = [path for path in cache.iterdir() if not path.name.endswith(".partial")]
    for entry in sorted(entries, key=lambda path: -path.stat().st_mtime)[kept:]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
