"""A user's own task and metric, from the example files of the package."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcluster_common.protocol.class_report import read_report
from ftcluster_common.protocol.job import Job, Purpose
from ftcluster_common.recipe import Recipe
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.user_code import CodeFile, UserCode, code_file, load_task
from ftcluster_train.engine.data.inputs_cache import keep_inputs, reuse_inputs
from ftcluster_train.engine.data.run_code import open_job, own_metrics
from ftcluster_train.engine.data.run_inputs import read_inputs, write_inputs
from ftcluster_train.engine.prepare import prepare
from ftcluster_train.engine.tasks.registry import registered, task_class
from ftcluster_train.errors import MARKER, TrainError
from tests.engine.jobs import make_job, read_events, result_of
from tests.engine.runs import (
    Row,
    classes,
    make_whole_job,
    numbers,
    questions,
    sets_of_classes,
    summaries,
    tags,
    triplets,
    write_data,
    write_model,
)
from tests.programs import ROOT, free_ports

BIN = Path(sys.executable).parent
SECONDS = 120
EXAMPLE = ROOT / "examples/word_count.py"


def file_of(path: Path, change: tuple[str, str] = ("", "")) -> CodeFile:
    return code_file(path.name, path.read_text(encoding="utf-8").replace(*change))


@pytest.fixture(autouse=True)
def _no_task_is_left() -> Iterator[None]:
    yield
    load_task(None, Path())


def own_job(folder: Path, task: CodeFile, run: str = "one", **training: Any) -> Job:
    """Return a training with a file's task, as a control node writes it for a host."""
    spec = load_task(task, folder / task.name)
    assert spec is not None
    texts = [" ".join(["w5", "w6", "w7"][: 1 + n % 3]) for n in range(24)]
    rows = [{"text": text} for text in texts]
    data = write_data(folder / "data", {"train": rows, "validation": rows[:6]})
    model = write_model(folder / "model", "bert", "text-classification")
    job = make_job(folder / "runs" / run, "text-classification", **training)
    recipe = replace(
        job.recipe, task=spec.name, options=spec.fields(), data=data, model=model,
        from_scratch=False,
    )  # fmt: skip
    return replace(job, run=run, prefix=folder, recipe=recipe, code=UserCode(task))


def with_task_of(job: Job) -> Recipe:
    """Return the recipe with the fields of the task that its file has registered."""
    return replace(job.recipe, options=TASKS[job.recipe.task].fields())


def as_run(job: Job, run: str) -> Job:
    """Return the same training as another run."""
    folder = job.run_dir.parent / run
    folder.mkdir()
    return replace(job, run=run, run_dir=folder)


def write_job(job: Job) -> Path:
    (job.run_dir / "job.json").write_text(json.dumps(job.to_dict()), encoding="utf-8")
    return job.run_dir


def used(job: Job, purpose: Purpose, model: str, data: str) -> Job:
    """Return the job that uses the trained model."""
    recipe = replace(job.recipe, model=model, data=data)
    folder = job.run_dir.parent / purpose
    folder.mkdir()
    return replace(job, run=purpose, run_dir=folder, recipe=recipe, purpose=purpose)


def start(*arguments: object) -> "subprocess.CompletedProcess[str]":
    (port,) = free_ports(1)
    env = {
        **os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    return subprocess.run(
        list(map(str, arguments)), env=env, cwd=ROOT, text=True, timeout=SECONDS, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def ranks(run_dir: Path, count: int) -> "subprocess.CompletedProcess[str]":
    program = (sys.executable, "-m", "ftcluster_train.engine.rank", run_dir)
    return start(BIN / "mpirun", "-n", count, *program)


@pytest.mark.usefixtures("one_world")
def test_two_ranks_train_it_and_its_model_is_measured_and_predicts(tmp_path: Path) -> None:
    steps = {"max_steps": 60, "eval_strategy": "steps", "eval_steps": 30, "learning_rate": 1e-2}
    job = own_job(tmp_path, file_of(EXAMPLE), **steps)
    folder = write_job(job)
    prepared = start(sys.executable, "-m", "ftcluster_train.engine.prepare", folder)
    assert (prepared.returncode, prepared.stdout) == (0, "")
    copy = folder / "word_count.py"
    assert copy.read_bytes() == EXAMPLE.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    trained = ranks(folder, 2)
    assert trained.returncode == 0, trained.stdout
    [result] = [event for event in read_events(job) if event["event"] == "result"]
    assert result["world_size"] == 2
    assert result["metrics"]["loss"] < 0.5  # a constant prediction of two words would give 0.67
    rows = [{"text": "w5"}, {"text": "w5 w6 w7"}]
    unseen = write_data(tmp_path / "unseen", {"test": rows})
    measured = result_of(used(job, "evaluate", result["model"], job.recipe.data))
    assert measured["metrics"] == pytest.approx(result["metrics"], abs=1e-4)
    predicted = result_of(used(job, "predict", result["model"], unseen))
    lines = (Path(predicted["predictions"]) / "predictions.jsonl").read_text().splitlines()
    answers = [json.loads(line) for line in lines]
    assert [answer["text"] for answer in answers] == ["w5", "w5 w6 w7"]
    assert answers[0]["prediction"] < 2 < answers[1]["prediction"]

    copy.write_text(f"{EXAMPLE.read_text()}\nprint('changed')\n")
    with pytest.raises(TrainError, match="not the file that the run was started with"):
        open_job(folder)


def test_changed_code_encodes_the_data_again(tmp_path: Path) -> None:
    job = own_job(tmp_path, file_of(EXAMPLE))
    first = prepare(job)
    assert prepare(job).samples == first.samples
    twice = ("len(text.split())", "2 * len(text.split())")
    changed = replace(job, code=UserCode(file_of(EXAMPLE, twice)))
    load_task(changed.code.task, Path("word_count.py"))
    changed = replace(changed, recipe=with_task_of(changed))
    assert prepare(changed).samples != first.samples


def test_a_run_with_other_code_does_not_reuse_prepared_inputs(tmp_path: Path) -> None:
    job = own_job(tmp_path, file_of(EXAMPLE))
    folder, inputs = write_job(job), prepare(job)
    write_inputs(folder, inputs)
    keep_inputs(job, inputs)
    again, other = (write_job(as_run(job, name)) for name in ("two", "three"))
    text = (other / "job.json").read_text()
    changed = UserCode(file_of(EXAMPLE, ("0.5", "0.4")))
    document = {**json.loads(text), "code": replace(job, code=changed).to_dict()["code"]}
    (other / "job.json").write_text(json.dumps(document))
    assert reuse_inputs([str(again)])
    assert read_inputs(again) == read_inputs(folder)
    assert not reuse_inputs([str(other)])


def test_an_error_of_the_file_is_reported_with_its_line(tmp_path: Path) -> None:
    line = EXAMPLE.read_text().splitlines().index(
        '            words = [sample["words"][0] for sample in samples]'
    )  # fmt: skip
    task = file_of(EXAMPLE, ('[sample["words"][0] for', '[{}[sample["words"][0]] for'))
    job = own_job(tmp_path, task, max_steps=1, eval_strategy="steps", eval_steps=1)
    folder = write_job(job)
    write_inputs(folder, prepare(job))
    failed = ranks(folder, 1)
    assert failed.returncode != 0
    [error] = [json.loads(one.partition(MARKER)[2]) for one in failed.stdout.splitlines()
               if MARKER in one]  # fmt: skip
    assert error["message"].startswith(f"word_count.py:{line + 1}: KeyError: ")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("import torch\n    from", "import no_such_package\n    from"), "ModuleNotFoundError"),
        (("@registry.register", ""), "registers no class for the task word-count"),
    ],
)
def test_a_class_that_cannot_be_registered_is_an_error(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    job = own_job(tmp_path, file_of(EXAMPLE, change))
    with pytest.raises(TrainError, match=problem) as caught:
        task_class(job.recipe)
    assert "word_count.py:" in str(caught.value)


def test_a_file_that_has_changed_replaces_its_task(tmp_path: Path) -> None:
    before = task_class(own_job(tmp_path, file_of(EXAMPLE)).recipe)
    after = task_class(own_job(tmp_path, file_of(EXAMPLE, ("64", "32"))).recipe)
    assert before.__name__ == after.__name__
    assert before is not after
    assert len(registered()["word-count"]) == 1
    load_task(None, Path())
    assert "word-count" not in registered()


@pytest.mark.usefixtures("one_world")
def test_a_loss_of_ones_own_is_minimized(tmp_path: Path) -> None:
    """With gamma 0 the loss is the cross entropy; a larger gamma changes the training."""
    task = file_of(ROOT / "examples/focal_loss.py")
    spec = load_task(task, Path("focal_loss.py"))
    assert spec is not None
    data = write_data(tmp_path / "data", {"train": classes(48, 1), "validation": classes(24, 2)})
    model = write_model(tmp_path / "model", "bert", "text-classification")
    plain = make_whole_job(
        tmp_path / "runs/plain", "text-classification", data, model, max_steps=3,
        eval_strategy="epoch", full_determinism=True,
    )  # fmt: skip
    metrics = {"plain": result_of(plain)["metrics"]}
    for gamma in (0.0, 4.0):
        options = spec.fields(**{**vars(plain.recipe.options), "gamma": gamma})
        recipe = replace(plain.recipe, task=spec.name, options=options)
        job = replace(as_run(plain, str(gamma)), recipe=recipe, code=UserCode(task))
        metrics[str(gamma)] = result_of(job)["metrics"]
    assert metrics["0.0"] == pytest.approx(metrics["plain"])
    assert metrics["4.0"] != pytest.approx(metrics["plain"])


@pytest.mark.usefixtures("one_world")
def test_a_metric_of_ones_own_chooses_the_best_model(tmp_path: Path) -> None:
    metrics = file_of(ROOT / "examples/worst_class.py")
    data = write_data(tmp_path / "data", {"train": classes(48, 1), "validation": classes(24, 2)})
    job = own_metric_job(tmp_path, data)
    result = result_of(replace(job, code=UserCode(metrics=metrics)))
    assert {"accuracy", "worst_recall", "loss"} <= result["metrics"].keys()
    report = read_report(result["classes"]["validation"])
    recalls = [one.recall for one in report.classes]
    assert result["metrics"]["worst_recall"] == pytest.approx(min(recalls))


def own_metric_job(folder: Path, data: str) -> Job:
    model = write_model(folder / "model", "bert", "text-classification")
    return make_whole_job(
        folder / "runs/one", "text-classification", data, model, max_steps=4,
        eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
        load_best_model_at_end=True, metric_for_best_model="worst_recall",
    )  # fmt: skip


def test_open_job_makes_the_task_available(tmp_path: Path) -> None:
    job = own_job(tmp_path, file_of(EXAMPLE))
    load_task(None, Path())
    assert open_job(write_job(job)).recipe == job.recipe


def equally_long_tags(count: int, seed: int) -> list[Row]:
    """Return rows with equally many words, so that means over rows and over words agree."""
    rows = [row for row in tags(20 * count, seed) if len(row["tokens"]) >= 5][:count]
    return [{name: values[:5] for name, values in row.items()} for row in rows]


METRICS = """
METRICS: tuple[str, ...] = ("own",)

def compute_metrics(predictions, references):
    assert len(predictions) == len(references) > 0
    right = [{compare} for a, b in zip(predictions, references)]
    return {{"own": sum(right) / len(right)}}
"""
TAGS = "sum(x == y for x, y in zip(a, b, strict=True)) / len(b)"


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize(
    ("task", "kind", "rows", "options", "compare", "same"),
    [
        ("text-classification", "bert", classes, {}, "a == b and type(a) is str", "accuracy"),
        ("text-classification", "bert", sets_of_classes, {}, "(a == b) * isinstance(a, list)", ""),
        ("text-classification", "bert", numbers, {"regression": True}, "abs(a - b) >= 0", ""),
        ("token-classification", "bert", equally_long_tags, {}, TAGS, "accuracy"),
        ("question-answering", "bert", questions, {}, "(a in b) * 100", ""),
        ("seq2seq-lm", "t5", summaries, {}, "type(a) is type(b) is str", ""),
        ("text-ranking", "bert", triplets, {}, "(a >= 0.5) == (b >= 0.5)", "accuracy"),
    ],
)
def test_metrics_get_predictions_and_references_of_each_task(
    tmp_path: Path, task: str, kind: str, rows: Any, options: dict[str, Any], compare: str,
    same: str,
) -> None:  # fmt: skip
    data = write_data(tmp_path / "data", {"train": rows(16, 1), "validation": rows(12, 2)})
    model = write_model(tmp_path / "model", kind, task)
    job = make_whole_job(
        tmp_path / "runs/one", task, data, model, options, max_steps=1, eval_strategy="steps",
        eval_steps=1,
    )  # fmt: skip
    assert job.recipe.spec.has_references(job.recipe.options)
    code = UserCode(metrics=code_file("own.py", METRICS.format(compare=compare)))
    metrics = result_of(replace(job, code=code))["metrics"]
    if same:
        assert metrics["own"] == pytest.approx(metrics[same])
    else:
        assert metrics["own"] >= 0


@pytest.mark.usefixtures("one_world")
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('return {"other": 1.0}', "returns other, but METRICS lists own"),
        ("return 1.0", "returns float, but METRICS lists own"),
        ('return {"own": "high"}', "could not convert string to float"),
        ("return {}[predictions[0]]", r"own.py:\d+: KeyError: "),
        ("import no_such_package", r"own.py:\d+: ModuleNotFoundError: "),
    ],
)
def test_a_wrong_result_of_metrics_is_reported(tmp_path: Path, body: str, problem: str) -> None:
    text = f'METRICS = ("own",)\n\ndef compute_metrics(predictions, references):\n    {body}\n'
    measure = own_metrics(code_file("own.py", text), tmp_path / "own.py")
    with pytest.raises(TrainError, match=problem):
        measure(["a"], ["b"])
