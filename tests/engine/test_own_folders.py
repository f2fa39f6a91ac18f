"""Built-in tasks, copied out of the package, run as a user's own task in a folder.

So a user's task goes through the same interface as a built-in task, and lacks nothing that a
built-in task has.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file

from ftcluster_common.protocol.job import Job
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.user_code import CodeFile, UserCode, code_folder, load_task
from ftcluster_train.engine.data.run_code import open_job
from ftcluster_train.engine.tasks.registry import registered, task_class
from ftcluster_train.errors import TrainError
from tests.engine.jobs import result_of
from tests.engine.runs import (
    Row,
    judgements,
    make_whole_job,
    triplets,
    write_data,
    write_model,
)
from tests.programs import ROOT

DECLARATIONS = ROOT / "common/ftcluster_common/tasks"
ON_HOSTS = ROOT / "train/ftcluster_train/engine/tasks"
END = """

from ftcluster_common.tasks.registry import register

register({spec}())


def on_hosts() -> None:
    from . import {module}
"""


class BuiltIn(NamedTuple):
    """A task of the package, and data for a small training.

    Attributes:
        declaration: file of the first half, in DECLARATIONS.
        modules: files of the second half, in ON_HOSTS; the first one registers the task's class.
        kind: kind of model.
        head: True if the model is written with its head.
    """

    declaration: str
    spec: str
    modules: Sequence[str]
    kind: str
    head: bool
    rows: Callable[[int, int], list[Row]]


BUILT_IN = {
    "unpaired-preference-tuning": BuiltIn(
        "unpaired.py", "UnpairedPreferenceTuningSpec", ["chat/unpaired_preference_tuning.py"],
        "gpt2", True, judgements,
    ),
    "sparse-encoding": BuiltIn(
        "sparse.py", "SparseEncodingSpec",
        ["sparse/sparse_encoding.py", "sparse/sparse_vectors.py", "sparse/splade_pooling.py"],
        "bert", True, triplets,
    ),
    "multi-vector-encoding": BuiltIn(
        "multi_vector.py", "MultiVectorEncodingSpec",
        ["multi_vector/multi_vector_encoding.py", "multi_vector/token_vectors.py"],
        "bert", False, triplets,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_task_is_left() -> Iterator[None]:
    yield
    load_task(None, Path())


def copied(name: str, folder: Path) -> Path:
    """Copy a built-in task to a folder, as a user would: with another name, and its own imports."""
    built_in = BUILT_IN[name]
    names = {f"ftcluster_common.tasks.{Path(built_in.declaration).stem} ": ". "}
    for file in built_in.modules:
        path = Path(file)
        names[f"ftcluster_train.engine.tasks.{path.parent}.{path.stem} "] = f".{path.stem} "
    folder.mkdir()
    for file in (DECLARATIONS / built_in.declaration, *(ON_HOSTS / f for f in built_in.modules)):
        text = file.read_text(encoding="utf-8").replace(f'"{name}"', f'"own-{name}"')
        for old, new in names.items():
            text = text.replace(f"from {old}", f"from {new}")
        is_first = file.parent == DECLARATIONS
        if is_first:
            module = Path(built_in.modules[0]).stem
            text += END.format(spec=built_in.spec, module=module)
        (folder / ("__init__.py" if is_first else file.name)).write_text(text, encoding="utf-8")
    return folder


def code_in(folder: Path) -> CodeFile:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    return code_folder(folder.name, texts)


def as_own(job: Job, code: CodeFile) -> Job:
    """Return a training with the task of a folder, as a host reads it from job.json."""
    spec = load_task(code, Path("anywhere") / code.name)
    assert spec is not None
    options = spec.fields(**vars(job.recipe.options))
    folder = job.run_dir.parent / "own"
    folder.mkdir()
    own = replace(
        job, run="own", run_dir=folder, code=UserCode(code),
        recipe=replace(job.recipe, task=spec.name, options=options),
    )  # fmt: skip
    (folder / "job.json").write_text(json.dumps(own.to_dict()), encoding="utf-8")
    load_task(None, Path())
    return open_job(folder)


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_copied_task_trains_the_same_model(tmp_path: Path, name: str) -> None:
    built_in = BUILT_IN[name]
    rows = built_in.rows
    data = write_data(tmp_path / "data", {"train": rows(24, 1), "validation": rows(8, 2)})
    model = write_model(tmp_path / "model", built_in.kind, name, built_in.head)
    options = {"chat_template": False} if hasattr(TASKS[name].fields, "chat_template") else {}
    job = make_whole_job(
        tmp_path / "runs/plain", name, data, model, options, max_steps=3, learning_rate=5e-3,
        eval_strategy="epoch", full_determinism=True,
    )  # fmt: skip
    plain = result_of(job)
    code = code_in(copied(name, tmp_path / "mine"))
    own = as_own(job, code)
    assert task_class(own.recipe).__module__.startswith(f"ftcluster_user_{code.sha256[:16]}.")
    result = result_of(own)
    assert result["metrics"] == plain["metrics"]
    trained, wanted = (load_file(Path(r["model"]) / "model.safetensors") for r in (result, plain))
    assert trained.keys() == wanted.keys()
    assert all(trained[name].equal(wanted[name]) for name in wanted)
    untrained = load_file(Path(model) / "model.safetensors")
    assert any(not trained[name].equal(untrained[name]) for name in untrained.keys() & trained)
    load_task(None, Path())
    assert own.recipe.task not in registered()


def test_a_changed_module_is_refused_and_an_error_names_its_line(tmp_path: Path) -> None:
    name = "sparse-encoding"
    data = write_data(tmp_path / "data", {"train": triplets(8, 1)})
    model = write_model(tmp_path / "model", "bert", name, True)
    job = make_whole_job(tmp_path / "runs/plain", name, data, model)
    folder = copied(name, tmp_path / "mine")
    module = folder / "sparse_vectors.py"
    module.write_text(f"{module.read_text()}\nimport no_such_package\n")
    line = len(module.read_text().splitlines())
    own = as_own(job, code_in(folder))
    with pytest.raises(TrainError, match=f"^mine/sparse_vectors.py:{line}: ModuleNotFoundError"):
        task_class(own.recipe)
    copy = own.run_dir / "mine.task/sparse_vectors.py"
    assert copy.stat().st_mode & 0o777 == 0o600
    copy.write_text(f"{copy.read_text()}\nprint('changed')\n")
    with pytest.raises(TrainError, match="not the file that the run was started with"):
        open_job(own.run_dir)
