"""`import ftcluster`: fast, silent, with exceptions instead of exits."""

import json
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ftcluster
from ftcluster.cli.main import main
from ftcluster.cluster.saved import Cluster, remember
from ftcluster.launch import training_run
from ftcluster.launch.record import begin_record, record_dir
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.runs import runs as operations
from ftcluster.progress.notebook import NotebookView
from ftcluster.progress.state import RunProgress
from ftcluster_common.models.sentence_modules import (
    IDENTITY,
    SPLADE,
    Dense,
    SentenceModules,
    TokenVectors,
    module_files,
)
from ftcluster_common.protocol.run_state import RunState
from tests.unit.clusters import cluster, host

TWO = cluster(host("node1", cores=64, numa_nodes=2), host("node2", cores=64, numa_nodes=2))
OURS = Cluster(inventories=(Path("/inventory.ini"),), facts=TWO)
RUN = RunState("mrpc-1", "done", "mrpc", ("node1",), 2, 9, 9, 0.0, 1.0, "/model")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    remember(OURS)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """Record the launched trainings."""
    found: list[TrainingRun] = []

    def train(run: TrainingRun, *_: object) -> RunProgress:
        found.append(run)
        return RunProgress(run.id)

    monkeypatch.setattr(training_run, "train", train)
    return found


def test_the_import_is_quick_and_loads_no_ansible() -> None:
    code = "import sys, ftcluster; print([m for m in ('ansible', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    assert done.stdout.strip() == "[]"
    assert all(hasattr(ftcluster, name) for name in ftcluster.__all__)
    assert not hasattr(ftcluster, "no_such_name")


def test_a_plan_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"precision": "fp32", "metrics": ["f1"]}
    found = ftcluster.plan("mrpc", settings, nodes=1, cluster=OURS).document()
    assert capsys.readouterr() == ("", "")
    assert main(["plan", "mrpc", "precision=fp32", "metrics=[f1]", "--nodes", "1", "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    for part in ("recipe", "hosts", "decisions", "facts"):
        assert json.loads(json.dumps(found[part])) == own[part]


def test_a_training_is_left_running(
    launched: list[TrainingRun], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "reviews.csv").write_text("text,label\na,x\nb,y\n")
    run = ftcluster.train("classify", data=tmp_path / "reviews.csv", cluster=OURS)
    [training] = launched
    assert (run.id, run.cluster) == (training.id, OURS)
    assert training.launch.max_restarts == 3
    assert training.command == ("python",)
    assert capsys.readouterr() == ("", "")


CALLS: tuple[Callable[[], Any], ...] = (
    lambda: ftcluster.plan("no-such-recipe"),
    lambda: ftcluster.train(resume="mrpc-1", data="reviews.csv"),
    lambda: ftcluster.train("mrpc", nodes=3),
    lambda: ftcluster.predict("model", "new.csv", "out.xlsx"),
    lambda: ftcluster.run(["missing.py"]),
    lambda: ftcluster.setup("missing.ini"),
    lambda: ftcluster.setup("localhost", stack="none"),
)


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_errors_are_raised_and_not_printed(
    call: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ftcluster.FtclusterError):
        call()
    assert capsys.readouterr() == ("", "")


def test_what_is_known_of_a_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    copied: list[Path] = []
    monkeypatch.setattr(operations, "all_runs", lambda *_, **__: ([RUN], 0))
    monkeypatch.setattr(operations, "find_run", lambda *_: RUN)
    monkeypatch.setattr(operations, "fetch_model", lambda *given: copied.append(given[-1]))

    def fetch_outputs(_: object, __: str, folder: Path) -> None:
        (folder / "out").mkdir(parents=True)
        (folder / "out/model.bin").write_bytes(bytes(300_000))

    monkeypatch.setattr(operations, "fetch_outputs", fetch_outputs)
    plan = {"hosts": [{"name": "node1"}], "spares": [], "rank_user": "", "prefix": "/opt/ftcluster"}
    begin_record(RUN.run, {"inventories": ["i"], "plan": plan})
    run = ftcluster.find_run("mrpc")
    assert (run.id, run.state(), ftcluster.runs()) == ("mrpc-1", RUN, (RUN,))
    assert run.fetch("model") == Path("model").absolute()
    assert copied == [Path("model")]
    # for a script, the files that it has written
    monkeypatch.setattr(operations, "find_run", lambda *_: replace(RUN, model=""))
    begin_record(RUN.run, {"inventories": ["i"], "plan": plan})
    assert run.fetch("files") == Path("files").absolute()
    capfd.readouterr()
    assert main(["fetch", "mrpc-1", "again"]) == 0
    assert capfd.readouterr().out == "1 file, 0.3 MB: again\n  0.3 MB  out/model.bin\n"
    assert main(["fetch", "mrpc-1", "reports", "--reports"]) == 0
    assert copied[-1] == Path("reports")
    begin_record(RUN.run, {"inventories": ["i"], "plan": plan, "kind": "train"})
    for state, hint in (
        (replace(RUN, model="", state="running"), "until the run ends: ftcluster attach mrpc-1"),
        (replace(RUN, model="", state="stopped", step=3), "ftcluster train --resume mrpc-1"),
        (replace(RUN, model="", state="failed", step=0), "ftcluster logs mrpc-1"),
    ):
        monkeypatch.setattr(operations, "find_run", lambda *_, state=state: state)
        with pytest.raises(ftcluster.FtclusterError, match="has not written a model") as caught:
            run.fetch("none")
        assert hint in caught.value.hint
    capfd.readouterr()
    (record_dir("mrpc-1") / "run.json").write_text("{")  # gives a warning through logging
    assert ftcluster.runs() == (RUN,)
    assert capfd.readouterr() == ("", "")


class Frame:
    """A table with the method of pandas' DataFrame; tests/engine uses a real DataFrame."""

    def to_json(self, *, orient: str, lines: bool, date_format: str, force_ascii: bool) -> str:
        assert (orient, lines, date_format, force_ascii) == ("records", True, "iso", False)
        return '{"text":"schön","label":"a"}\n{"text":"b","label":"c"}\n'


def test_rows_of_this_python_are_a_file_of_the_run(launched: list[TrainingRun]) -> None:
    rows = [{"text": "schön", "label": "a"}, {"text": "b", "label": "c"}]
    ftcluster.train("classify", data=Frame(), cluster=OURS)
    for _ in range(2):
        ftcluster.train("classify", data=rows, cluster=OURS)
    files = [Path(run.folders[0][0]) for run in launched]
    assert files[0] != files[1] == files[2]  # other text, and equal rows
    for file in files:
        assert [json.loads(line) for line in file.read_text().splitlines()] == rows
        assert file.stat().st_mode & 0o777 == 0o600
    for wrong in ([], [{"text": object()}], [1]):
        with pytest.raises(ftcluster.FtclusterError, match="rows"):
            ftcluster.train("classify", data=wrong, cluster=OURS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "task", "package", "called"),
    [
        (("modules.json",), "sentence-similarity", "sentence_transformers", "SentenceTransformer"),
        ((), "text-ranking", "sentence_transformers", "CrossEncoder"),
        (("splade",), "sparse-encoding", "sentence_transformers", "SparseEncoder"),
        (("tokens",), "multi-vector-encoding", "sentence_transformers", "MultiVectorEncoder"),
        ((), "instruction-tuning", "transformers", "pipeline text-generation"),
        ((), "text-classification", "transformers", "pipeline text-classification"),
    ],
)
def test_a_model_is_loaded_as_its_users_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], task: str,
    package: str, called: str,
) -> None:  # fmt: skip
    folder = tmp_path / "mrpc-1"
    folder.mkdir()
    pooling = SPLADE if "splade" in files else "mean"
    modules = SentenceModules(pooling, normalize=pooling == "mean")
    if "tokens" in files:
        layers = (Dense(8, 4, False, IDENTITY),)
        modules = replace(modules, dense=layers, tokens=TokenVectors(8, 9))
    documents = module_files(modules, 8, 9, {}) if files else {}
    for name, content in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
        (folder / name).with_name("model.safetensors").write_bytes(b"")
    about = {"recipe": "r", "task": task, "options": {}}
    (folder / "ftcluster.json").write_text(json.dumps(about))
    with pytest.raises(ftcluster.FtclusterError, match=r"needs .* in this Python"):
        ftcluster.load(folder)
    with pytest.raises(ftcluster.FtclusterError, match=r"contains no ftcluster\.json"):
        ftcluster.load(tmp_path)
    calls: list[str] = []
    module = types.ModuleType(package)

    def called_with(name: str, **options: object) -> None:
        assert options.pop("trust_remote_code") is False, "the default may ask on a terminal"
        assert options.pop("model", str(folder)) == str(folder)
        assert options == {"device": "cpu"}
        calls.append(name)

    module.pipeline = lambda task, **options: called_with(  # type: ignore[attr-defined]
        f"pipeline {task}", **options
    )
    for name in ("SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder"):
        setattr(module, name, lambda _, name=name, **options: called_with(name, **options))
    monkeypatch.setitem(sys.modules, package, module)
    ftcluster.load(ftcluster.Run("mrpc-1", OURS), device="cpu")  # the model has been copied here
    assert calls == [called]


def test_a_notebook_shows_one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures: list[str] = []
    module, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")

    class Handle:
        def update(self, page: str) -> None:
            pictures[-1] = page

    def show(page: str, display_id: bool) -> Handle:
        assert display_id
        pictures.append(page)
        return Handle()

    display.HTML, display.display = str, show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert not isinstance(ftcluster.terminal_view(), NotebookView)  # IPython on a terminal
    module.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    view, progress = ftcluster.terminal_view(), RunProgress("mrpc-1", doing="loading <model>")
    for _ in range(3):
        view.run_event(progress, "phase")
    view.close()
    assert len(pictures) == 1
    assert "loading &lt;model&gt;" in pictures[0]
