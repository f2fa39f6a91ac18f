"""Rank 0 writes events for the control node and the same values for the trackers.

Here, stand-ins replace the trackers' packages; tests/engine/test_report_to.py uses the real
packages.
"""

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ftcluster_common.recipe import Training
from ftcluster_train.engine import tracker_packages
from ftcluster_train.engine.progress import ProgressLog
from ftcluster_train.engine.trackers import MLFLOW_SETTINGS, STARTS, Trackers, make_trackers
from ftcluster_train.errors import TrainError
from ftcluster_train.io.events import EventWriter

Calls = list[tuple[Any, ...]]


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    made = ModuleType(name)
    vars(made).update(contents)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls: Calls = []

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            calls.append(("in", log_dir))

        def add_scalar(self, *scalar: Any) -> None:
            calls.append(scalar)

        def flush(self) -> None:
            calls.append(("flush",))

        def close(self) -> None:
            calls.append(("close",))

    for name in ("tensorboard", "torch", "torch.utils"):
        module(monkeypatch, name)
    module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    return calls


class Client:
    """The methods of mlflow.tracking.MlflowClient that ftcluster calls."""

    calls: Calls = []  # noqa: RUF012 - emptied by the fixture
    experiments: dict[str, str] = {}  # noqa: RUF012
    broken = ""

    def __init__(self, tracking_uri: str) -> None:
        if self.broken == "server":
            raise ConnectionError("http://me:pw@mlflow is not there")
        self.calls.append(("at", tracking_uri))

    def get_experiment_by_name(self, name: str) -> Any:
        known = self.experiments.get(name)
        return SimpleNamespace(experiment_id=known) if known else None

    def create_experiment(self, name: str) -> str:
        self.calls.append(("experiment", name))
        return "new"

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.calls.append(("run", experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        if self.broken == "log" and metrics:
            raise ConnectionError("gone\nmore")
        self.calls.append((run, list(metrics), dict(params)))

    def set_terminated(self, run: str, status: str) -> None:
        self.calls.append((run, status))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", *MLFLOW_SETTINGS):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setattr(Client, "calls", [])
    monkeypatch.setattr(Client, "experiments", {})
    monkeypatch.setattr(Client, "broken", "")
    module(monkeypatch, "mlflow")
    module(monkeypatch, "mlflow.tracking", MlflowClient=Client)
    module(
        monkeypatch,
        "mlflow.entities",
        Metric=lambda name, value, _, step: (name, value, step),
        Param=lambda key, value: (key, value),
    )
    return Client


def trackers(folder: Path, said: list[str] | None = None, **changes: object) -> Trackers:
    notify = [].append if said is None else said.append
    return make_trackers(Training(**changes), folder, "r-1", notify)


def test_without_trackers_nothing_is_written(tmp_path: Path) -> None:
    made = trackers(tmp_path)
    made.log(1, {"loss": 1.0})
    made.close()
    assert not list(tmp_path.iterdir())
    # the other ranks write nothing either
    ProgressLog().write("step", **STEP)


def test_tensorboard(tmp_path: Path, tensorboard: Calls) -> None:
    made = trackers(tmp_path, report_to=("tensorboard", "tensorboard"))
    made.log(3, {"loss": 1.5, "eval_eval_x": 0.5})
    made.close()
    made.close()
    assert tensorboard == [
        ("in", str(tmp_path / "reports/tensorboard")),
        ("train/loss", 1.5, 3),
        ("eval/eval_x", 0.5, 3),
        ("flush",),
        ("close",),
    ]


def test_wandb_stays_here_unless_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Calls = []

    class Run:
        def log(self, values: Mapping[str, float], step: int) -> None:
            calls.append((values, step))

        def finish(self, exit_code: int) -> None:
            calls.append((exit_code,))

    def init(**given: Any) -> Run:
        assert Path(given["dir"]).is_dir()
        config = given["config"]
        calls.append((given["mode"], given["project"], given["name"], config["seed"]))
        assert config["tags.team"] == "nlp"
        return Run()

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("FTCLUSTER_TAGS", "team=nlp ticket=42")
    module(monkeypatch, "wandb", init=init, Settings=lambda **given: given)
    made = trackers(tmp_path, report_to="wandb", seed=7)
    made.log(2, {"loss": 1.5})
    made.close(failed=True)
    assert calls == [("offline", "ftcluster", "r-1", 7), ({"loss": 1.5}, 2), (1,)]
    monkeypatch.setenv("WANDB_MODE", "online")
    trackers(tmp_path, report_to="wandb").close()
    assert calls[-2][0] == "online"


def test_mlflow_in_a_folder(tmp_path: Path, mlflow: type[Client]) -> None:
    made = trackers(tmp_path, report_to="mlflow", seed=7)
    made.log(2, {"loss": 1.5, "eval_f1": 0.5})
    made.close()
    at, experiment, run, parameters, metrics, end = mlflow.calls
    assert at == ("at", (tmp_path / "reports/mlruns").as_uri())
    assert (experiment, run) == (("experiment", "ftcluster"), ("run", "new", "r-1"))
    assert parameters[2]["seed"] == "7"
    assert metrics == ("r", [("loss", 1.5, 2), ("eval_f1", 0.5, 2)], {})
    assert end == ("r", "FINISHED")


def test_mlflow_on_a_server_in_an_experiment_that_is_there(
    tmp_path: Path, mlflow: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    mlflow.experiments["ours"] = "4"
    trackers(tmp_path, report_to="mlflow", run_name="mine").close(failed=True)
    assert mlflow.calls[:2] == [("at", "http://tracking:5000"), ("run", "4", "mine")]
    assert mlflow.calls[-1] == ("r", "FAILED")


def test_trackio_where_its_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise OSError("read-only")

    module(monkeypatch, "trackio", init=init)
    monkeypatch.setenv("TRACKIO_DIR", "/shared/trackio")
    with pytest.raises(TrainError, match="trackio cannot start at /shared/trackio: read-only"):
        trackers(tmp_path, report_to="trackio")


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("trackio", "trackio"), ("mlflow", "mlflow-skinny")],
)
def test_a_package_that_is_not_there_is_named_with_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if the package were not installed
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # otherwise the variable stays for other tests
    with pytest.raises(TrainError) as caught:
        trackers(tmp_path, report_to=name)
    host = socket.gethostname()
    assert f"the package {package}, which is not installed on {host}" in caught.value.message
    assert f"on {host}: {sys.executable} -I -m pip install {package}" in caught.value.hint
    assert ("--stack native-trackers" in caught.value.hint) == (name != "mlflow")


def test_packages_are_looked_for_before_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"tensorboard": object()}
    monkeypatch.setattr(tracker_packages.importlib.util, "find_spec", found.get)
    monkeypatch.setattr(sys, "argv", ["tracker_packages", "tensorboard"])
    assert tracker_packages.main() == 0
    monkeypatch.setattr(sys, "argv", ["tracker_packages", "tensorboard", "mlflow"])
    assert tracker_packages.main() == 1
    out = capsys.readouterr().out
    assert "mlflow needs the package mlflow-skinny, which is not installed on" in out
    assert "training.report_to=none" in out


def test_a_server_that_is_not_there_stops_the_run_before_it_trains(
    tmp_path: Path, mlflow: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pw@mlflow")
    mlflow.broken = "server"
    with pytest.raises(TrainError, match="cannot start at http://mlflow: ") as caught:
        trackers(tmp_path, report_to="mlflow")
    assert "pw" not in caught.value.message


def test_a_tracker_that_raises_is_closed_with_one_notice(
    tmp_path: Path, mlflow: type[Client], tensorboard: Calls
) -> None:
    said: list[str] = []
    made = trackers(tmp_path, said, report_to=("mlflow", "tensorboard"))
    mlflow.broken = "log"
    values: Mapping[str, float] = {"loss": 1.0}
    made.log(1, values)
    made.log(2, values)
    made.close()
    assert said == ["logging to mlflow stopped: gone"]
    assert [call for call in tensorboard if call[0] == "train/loss"] == [
        ("train/loss", 1.0, 1), ("train/loss", 1.0, 2),
    ]  # fmt: skip


STEP = {"step": 10, "loss": 0.5, "grad_norm": 1.5, "learning_rate": 1e-4, "epoch": 1.0}


class Recorder:
    """A tracker that stores logged values."""

    def __init__(self) -> None:
        self.values: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.values.append((step, dict(values)))

    def close(self, failed: bool) -> None:
        pass


def test_trackers_get_steps_and_evaluations_by_trainers_names(tmp_path: Path) -> None:
    recorder = Recorder()
    log = ProgressLog(EventWriter(tmp_path), Trackers({"recorder": recorder}, print))
    log.write("notice", message="3 samples were cut")
    log.write("step", **STEP, samples_per_second=64.0, train_seconds=5.0, remaining_seconds=1.0)
    log.write("evaluation", step=10, epoch=1.0, metrics={"accuracy": 0.9}, seconds=1.0)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["notice", "step", "evaluation"]
    assert events[1].items() >= {**STEP, "samples_per_second": 64.0}.items()
    assert recorder.values == [
        (10, {name: value for name, value in STEP.items() if name != "step"}),
        (10, {"eval_accuracy": 0.9, "epoch": 1.0}),
    ]


def test_a_full_disk_costs_lines_but_no_checkpoint_is_lost_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    log = ProgressLog(EventWriter(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("ftcluster_train.io.events.os.write", full)
        log.notice("no checkpoint of step 5")
        with pytest.raises(OSError, match="No space left"):
            log.write("checkpoint", step=5, folder="/c", seconds=1.0)
    log.notice("there is space again")
    [line] = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["message"] == "there is space again"


def test_each_tracker_that_a_recipe_takes_can_start_and_has_its_package() -> None:
    assert STARTS.keys() == tracker_packages.PACKAGES.keys()
    for name in STARTS:
        assert Training(report_to=name).report_to == name


@pytest.mark.parametrize("name", sorted(STARTS))
def test_whatever_a_package_raises_at_its_start_is_an_error_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class PackagesOwnError(Exception):
        pass

    def fails(*_: Any, **__: Any) -> None:
        raise PackagesOwnError("http://me:secret@server is away\nmore")

    for needed in ("tensorboard", "torch", "torch.utils", "mlflow", "mlflow.entities"):
        module(monkeypatch, needed)
    module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=fails)
    module(monkeypatch, "mlflow.tracking", MlflowClient=fails)
    module(monkeypatch, "wandb", init=fails, Settings=dict)
    module(monkeypatch, "trackio", init=fails)
    for variable in ("TRACKIO_DIR", *MLFLOW_SETTINGS):
        monkeypatch.setenv(variable, str(tmp_path))  # restored after the test
    with pytest.raises(TrainError, match=f"logging to {name} cannot start at .*server is away$"):
        trackers(tmp_path, report_to=name)
