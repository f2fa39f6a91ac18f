"""--task and --metrics with a user's own Python files."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcluster import api
from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.errors import FtclusterError, UsageError
from ftcluster.launch import training_run
from ftcluster.launch.record import begin_record
from ftcluster.launch.runs import find_job
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.search.sweep_request import SweepRequest, name_of
from ftcluster.operations.train import train
from ftcluster.operations.train.prepare import RecipeRequest
from ftcluster.progress.state import RunProgress
from ftcluster.user_script.own_code import read_code
from ftcluster_common.models.trained_model import FILE
from ftcluster_common.protocol.job import read_job
from ftcluster_common.tasks.registry import TASKS
from ftcluster_common.user_code import MAX_BYTES, UserCode, code_of, load_task
from tests.programs import ROOT
from tests.unit.clusters import cluster, host
from tests.unit.launch.test_runs import RUN_HOSTS, answers
from tests.unit.shell import Shell

TASK, METRICS = "word_count.py", "worst_class.py"
ROWS = [{"text": "three short words"}, {"text": "two words"}]
REVIEWS = [{"text": "good", "label": "yes"}, {"text": "bad", "label": "no"}]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the user's folder with both examples, data and a model."""
    for name in (TASK, METRICS):
        shutil.copyfile(ROOT / "examples" / name, tmp_path / name)
        (tmp_path / name).chmod(0o644)
    for name, rows in (("texts.jsonl", ROWS), ("reviews.jsonl", REVIEWS)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "bert"}')
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    load_task(None, Path())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record the runs that are launched on two hosts; no run is followed."""
    two = cluster(host("node0"), host("node1"))
    remember(Cluster(inventories=(Path("/inventory.ini"),), facts=two))
    runs: list[TrainingRun] = []

    def launch(run: TrainingRun, *_: object) -> RunProgress:
        runs.append(run)
        return RunProgress(run.id)

    monkeypatch.setattr(training_run, "train", launch)
    return runs


def change(folder: Path, *replacements: tuple[str, str], name: str = TASK) -> None:
    text = (folder / name).read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)


def test_its_data_are_described_without_a_recipe(shell: Shell) -> None:
    shown = shell(f"data --here --task {TASK} --data texts.jsonl --model model --json")
    assert (shown.document["task"], shown.document["recipe"]) == ("word-count", "word_count")
    assert shown.document["columns"] == {"text": ["text"]}
    assert shown.document["sets"][0]["rows"] == 2


def test_hosts_get_the_file_and_the_record_its_digest(
    launched: list[TrainingRun], tmp_path: Path
) -> None:
    code = read_code(TASK)
    assert code.task
    fields = ("max_length=9", "training.load_best_model_at_end=true",
              "training.save_strategy=epoch", "training.metric_for_best_model=exact")  # fmt: skip
    arguments = ("--task", TASK, "--data", "texts.jsonl", "--model", "model")
    assert main(["train", "--detach", *arguments, *fields]) == 0
    [run] = launched
    assert run.record()["code"] == [{"name": TASK, "sha256": code.task.sha256}]
    (tmp_path / "job.json").write_text(json.dumps(run.job, default=str))
    job = read_job(tmp_path)
    assert job.code == code
    assert job.recipe == run.recipe
    assert job.recipe.options.max_length == 9  # type: ignore[attr-defined]
    assert code.task.text == (tmp_path / TASK).read_text()


def as_folder(folder: Path, **modules: str) -> Path:
    """Make the example a folder whose second half is in a module of its own."""
    first, _, second = (folder / TASK).read_text().partition("def on_hosts() -> None:\n")
    package = folder / "counting"
    package.mkdir()
    modules["__init__"] = f"{first}def on_hosts() -> None:\n    from . import training\n"
    for name, text in {"training": second, **modules}.items():
        (package / f"{name}.py").write_text(text)
        (package / f"{name}.py").chmod(0o644)
    return package


@pytest.mark.parametrize("name", ["counting", "./counting", "counting/"])
def test_a_folder_may_have_the_task(
    folder: Path, launched: list[TrainingRun], tmp_path: Path, name: str
) -> None:
    package = as_folder(folder, other="x = 1\n")
    options = ("--data", "texts.jsonl", "--model", "model", "max_length=9")
    assert main(["train", "--detach", "--task", name, *options]) == 0
    [run] = launched
    (tmp_path / "job.json").write_text(json.dumps(run.job, default=str))
    code = read_job(tmp_path).code.task
    assert code
    assert (code.name, {*code.modules}) == ("counting", {"training", "other"})
    assert code.modules["other"] == "x = 1\n"
    assert run.record()["code"] == [{"name": "counting", "sha256": code.sha256}]
    (package / "other.py").write_text("x = 2\n")
    changed = read_code(name).task
    assert changed
    assert changed.sha256 != code.sha256


@pytest.mark.parametrize(
    ("modules", "mode", "problem"),
    [
        ({"helper": "x = 1\n"}, 0o664, r"other accounts can change \S+/counting/helper.py"),
        ({"not-a-name": ""}, 0o644, "counting/'not-a-name'.py cannot be imported"),
        ({"helper": "#" * MAX_BYTES}, 0o644, "the Python files in counting have"),
        ({"training": ""}, 0o644, None),
        (
            {"helper": "raise SystemExit(3)\n"},
            0o644,
            r"counting/helper.py:1: the file ends the pro",
        ),
        ({"helper": "x = (\n"}, 0o644, r"counting/helper.py:1: syntax error: "),
    ],
)
def test_what_is_wrong_with_a_folder_is_reported(
    folder: Path, shell: Shell, modules: dict[str, str], mode: int, problem: str | None
) -> None:
    package = as_folder(folder, **modules)
    for name in modules:
        (package / f"{name}.py").chmod(mode)
    if "helper" in modules:
        first = package / "__init__.py"
        first.write_text(f"from . import helper\n{first.read_text()}")
    options = "data --here --task counting --data texts.jsonl --model model"
    if problem is None:
        assert shell(options).out
    else:
        assert re.search(problem, shell(options, 2).err)
        assert "word-count" not in TASKS


def test_a_folder_without_a_declaration_or_that_others_can_change_is_refused(
    folder: Path, shell: Shell
) -> None:
    package = as_folder(folder)
    options = "data --here --task ./counting --data texts.jsonl --model model"
    package.chmod(0o777)
    assert re.search(r"other accounts can change \S+/counting, which", shell(options, 2).err)
    package.chmod(0o755)
    (package / "__init__.py").unlink()
    assert "counting has no __init__.py" in shell(options, 2).err


def test_a_recipe_alone_executes_nothing_and_names_the_option(folder: Path, shell: Shell) -> None:
    (folder / "mine.yml").write_text("task: word-count\nmodel: model\ndata: texts.jsonl\n")
    assert "--task FILE.py" in shell("data mine.yml --here", 2).err
    assert shell(f"data mine.yml --here --task {TASK} --json").document["recipe"] == "mine"
    assert "--task FILE.py" in shell("data mine.yml --here", 2).err  # the file appears only once
    assert "word-count" not in TASKS


def test_a_recipe_of_another_task_is_refused(shell: Shell) -> None:
    refused = shell(f"data glue --here --task {TASK} --data texts.jsonl --model model", 2).err
    assert "word_count.py defines the task word-count, but the recipe glue is for text-" in refused


def test_flags_with_a_name_are_fields_as_before(shell: Shell) -> None:
    options = "data classify --here --data reviews.jsonl --model model"
    assert shell(f"{options} --task text-classification --metrics f1_macro --json").document
    assert "got 'translation'" in shell(f"{options} --task translation", 2).err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([("class WordCount(", "class WordCount((")], r"word_count.py:\d+: syntax error: "),
        ([("from dataclasses", "import torch\nfrom dataclasses")],
         r"word_count.py:\d+: ModuleNotFoundError: No module named 'torch'\n.*in on_hosts\(\)"),
        ([("register(WordCountSpec())", "")], "word_count.py registers no task"),
        ([('name = "word-count"\n    fields', 'name = "causal-lm"\n    fields')],
         r"word_count.py:\d+: ValueError: there is a task causal-lm already"),
        ([("def on_hosts", "def at_hosts")], r"the function on_hosts\(\) is missing"),
        ([("def row_form", "def form")],
         r"word_count.py:\d+: TypeError: Can't instantiate abstract class WordCountSpec.*row_form"),
        ([("    max_length: int = limited(64, at_least=2)\n", "")], "has no field max_length"),
        ([("text_column: str", "model: str"), ("options.text_column", "options.model")],
         "defines the field model, which every recipe already has"),
        ([("register(WordCountSpec())", "raise SystemExit(3)")],
         r"word_count.py:\d+: the file ends the program"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_file_is_reported_with_its_line(
    folder: Path, changes: list[tuple[str, str]], problem: str, shell: Shell
) -> None:
    change(folder, *changes)
    refused = shell(f"data --here --task {TASK} --data texts.jsonl --model model", 2).err
    assert re.search(problem, refused, re.DOTALL)
    assert "Traceback" not in refused
    assert "word-count" not in TASKS


def test_an_error_in_a_method_is_reported_with_its_line(folder: Path, shell: Shell) -> None:
    change(folder, ('return {"text": (options.text_column,)}', "return {}[options]"))
    refused = shell(f"data --here --task {TASK} --data texts.jsonl --model model", 2).err
    assert re.search(r"word_count.py:\d+: KeyError: ", refused)
    assert "Traceback" not in refused


def test_what_a_method_returns_wrongly_is_reported(folder: Path, shell: Shell) -> None:
    change(folder, ('return {"text": (options.text_column,)}', "return 7"))
    refused = shell(f"data --here --task {TASK} --data texts.jsonl --model model", 2).err
    assert re.search(r"word_count.py: TypeError: .*\(\w+.py:\d+ of ftcluster\)", refused)
    assert "check what the methods of WordCountSpec return" in refused
    assert "Traceback" not in refused


def test_code_that_is_nested_too_deeply_is_reported(folder: Path, shell: Shell) -> None:
    change(folder, ("register(WordCountSpec())", "x = " + "(" * 9000 + ")" * 9000))
    assert "word_count.py:" in shell(f"data --here --task {TASK}", 2).err


def _directory(folder: Path) -> None:
    (folder / TASK).unlink()
    (folder / TASK).mkdir()


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / TASK).chmod(0o664), "chmod go-w"),
        (lambda folder: (folder / TASK).chmod(0o646), "chmod go-w"),
        (lambda folder: (folder / TASK).unlink(), "No such file or directory"),
        (_directory, "is a pipe or a device|Is a directory"),
        (lambda folder: (folder / TASK).write_bytes(b"\xff\xfe"), "is not UTF-8"),
        (lambda folder: (folder / TASK).write_text("#" * (MAX_BYTES + 1)), "larger than 65,536"),
    ],
)  # fmt: skip
def test_a_file_that_may_not_be_the_users_is_not_executed(
    folder: Path, spoil: Callable[[Path], Any], problem: str, shell: Shell
) -> None:
    spoil(folder)
    refused = shell(f"data --here --task {TASK} --data texts.jsonl --model model", 2).err
    assert re.search(problem, refused)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another account")
def test_a_file_of_another_account_is_not_executed(folder: Path, shell: Shell) -> None:
    os.chown(folder / TASK, 12345, -1)
    assert "belongs to another account" in shell(f"data --here --task {TASK}", 2).err


def test_modules_beside_the_file_are_not_imported(folder: Path, shell: Shell) -> None:
    (folder / "helpers.py").write_text("raise SystemExit('imported')\n")
    change(folder, ("from dataclasses", "import helpers\nfrom dataclasses"))
    refused = shell(f"data --here --task {TASK} --data texts.jsonl --model model", 2).err
    assert "No module named 'helpers'" in refused


def test_a_model_of_the_task_needs_the_file(
    folder: Path, launched: list[TrainingRun], shell: Shell
) -> None:
    document = {"recipe": "word_count", "task": "word-count", "options": {"max_length": 7}}
    (folder / "model" / FILE).write_text(json.dumps(document))
    options = "--model model --data texts.jsonl"
    for command in ("evaluate", "predict -o out.jsonl"):
        refused = shell(f"{command} {options}", 2).err
        assert "trained for the task word-count, which ftcluster does not know" in refused
        assert "--task FILE.py" in refused
        shell(f"{command} {options} --task {TASK} --dry-run")
    with pytest.raises(FtclusterError, match=r'task="FILE.py"'):
        api.load("model")
    assert main(["evaluate", *options.split(), "--task", TASK]) == 0
    [run] = launched
    assert (run.purpose, run.recipe.task) == ("evaluate", "word-count")
    assert run.recipe.max_length == 7  # the value of the training
    assert run.code == read_code(TASK)


def test_a_metric_is_declared_and_goes_to_the_hosts_unexecuted(
    folder: Path, launched: list[TrainingRun], shell: Shell
) -> None:
    change(folder, ("from collections import", "import torch\nfrom collections import"),
           name=METRICS)  # fmt: skip
    options = "train classify --detach --data reviews.jsonl --model model"
    best = ("training.load_best_model_at_end=true training.save_strategy=epoch "
            "training.metric_for_best_model=worst_recall")  # fmt: skip
    assert "'worst_recall' is not a metric of this task" in shell(f"{options} {best}", 2).err
    shell(f"{options} {best} --metrics {METRICS}")
    [run] = launched
    assert run.code.metrics
    assert run.code.metrics.text == (folder / METRICS).read_text()


@pytest.mark.parametrize(
    ("recipe", "old", "new", "problem"),
    [
        ("classify", "METRICS =", "NAMES =", "does not define METRICS"),
        ("classify", '("worst_recall",)', "names()", r"worst_class.py:\d+: METRICS is not a tup"),
        ("classify", '"worst_recall",', '"accuracy",', "already computes the metric accuracy"),
        ("classify", "def compute_metrics", "def compute", "has no function compute_metrics"),
        ("classify", "def compute_metrics(", "def (", r"worst_class.py:\d+: syntax error"),
        ("clm", "METRICS", "METRICS", "evaluations of causal-lm have no reference answers"),
    ],
)
def test_what_is_wrong_with_metrics_is_reported(
    folder: Path, recipe: str, old: str, new: str, problem: str, shell: Shell
) -> None:
    change(folder, (old, new), name=METRICS)
    options = f"data {recipe} --here --data reviews.jsonl --model model --metrics {METRICS}"
    assert re.search(problem, shell(options, 2).err)


def test_a_sweep_tries_its_fields_and_is_compared_by_its_metric(
    folder: Path, launched: list[TrainingRun]
) -> None:
    remembered = {"data": "texts.jsonl", "model": "model"}
    request = SweepRequest(("max_length=8,16",), **remembered, task=TASK, metric="exact")
    assert request.fields == ["max_length"]
    settings = {"max_length": "8"}
    assert request.with_settings(settings).user_code() == read_code(TASK)
    before = name_of(request, settings, {})
    change(folder, ("0.5", "0.25"))
    assert name_of(request, settings, {}) != before  # changed code leads to a new training
    assert launched == []


def found_run(folder: Path) -> tuple[UserCode, dict[str, Any]]:
    """Return the job of a run with the task, as a host returns it."""
    two = cluster(host("node0"), host("node1"))
    request = RecipeRequest((), "texts.jsonl", "model", task=TASK)
    run = request.prepared(Cluster(inventories=(folder / "i.ini",), facts=two))
    return run.code, json.loads(json.dumps(run.job, default=str))


def test_a_run_continues_with_its_own_file_where_this_control_node_started_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, job = found_run(folder)
    assert code.task
    answers(monkeypatch, node1={"r-1": job})
    with pytest.raises(FtclusterError, match=r"no record of\n.* --task word_count"):
        find_job(RUN_HOSTS, "r-1")
    assert find_job(RUN_HOSTS, "r-1", code).code == code  # the user has named the file
    begin_record("r-1", {"code": [{"name": TASK, "sha256": code.task.sha256}]})
    (folder / TASK).unlink()
    load_task(None, Path())
    found = find_job(RUN_HOSTS, "r-1")
    assert (found.code, found.recipe.task) == (code, "word-count")


def test_a_run_does_not_continue_with_another_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, job = found_run(folder)
    answers(monkeypatch, node1={"r-1": job})
    change(folder, ("0.5", "0.25"))
    with pytest.raises(FtclusterError, match=r"--task: run r-1 uses word_count\.py"):
        find_job(RUN_HOSTS, "r-1", read_code(TASK))
    # a host that changes the text changes its digest
    assert code.task
    begin_record("r-1", {"code": [{"name": TASK, "sha256": code.task.sha256}]})
    job["code"]["task"]["text"] = "import os\n"
    answers(monkeypatch, node1={"r-1": job})
    with pytest.raises(FtclusterError, match=r"the SHA-256 of word_count\.py differs"):
        find_job(RUN_HOSTS, "r-1")


def test_resume_takes_the_file_and_no_recipe(
    launched: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[UserCode] = []

    def stop(_place: object, _run: str, code: UserCode) -> None:
        asked.append(code)
        raise UsageError("enough")

    monkeypatch.setattr(train, "find_job", stop)
    assert main(["train", "--resume", "r-1", "--task", TASK]) == 2
    assert asked == [read_code(TASK)]
    assert launched == []


def test_a_script_of_slurm_names_the_file_by_its_path(folder: Path, shell: Shell) -> None:
    options = f"--task {TASK} --data texts.jsonl --model model"
    script = shell(f"export slurm {options} max_length=9").out.replace("\\\n", "")
    assert re.search(rf" train max_length=9 .*--task\s+{folder}/{TASK} ", script)
    assert "quickstart" not in script


def test_pods_get_the_file_in_their_job(folder: Path, shell: Shell) -> None:
    options = f"--task {TASK} --data texts.jsonl --model model --facts 2xc7i.metal-48xl"
    [config] = [
        one
        for one in yaml.safe_load_all(shell(f"export k8s {options} --image x").out)
        if one["kind"] == "ConfigMap"
    ]
    job = json.loads(config["data"]["job.json"])
    assert job["run"] == "word-count"
    assert job["code"]["task"]["text"] == (folder / TASK).read_text()


@pytest.mark.parametrize(
    "data",
    [
        {"task": {"name": "../x.py", "sha256": "", "text": ""}},
        {"task": {"name": "x.py", "sha256": "0" * 64, "text": "a = 1\n"}},
        {"task": {"name": "x.py"}}, {"task": 7}, [], "text",
    ],
)  # fmt: skip
def test_files_of_a_job_have_a_plain_name_and_their_digest(data: Any) -> None:
    if data in ([],):
        assert code_of(data) == UserCode()
        return
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        code_of(data)


def test_a_plan_of_python_takes_the_file(launched: list[TrainingRun]) -> None:
    found = api.plan(data=ROWS, model="model", task=TASK)
    assert found.run.recipe.task == "word-count"
    assert replace(found.run.code, task=None) == UserCode()
    assert launched == []
