"""Logging of a training's values to TensorBoard, trackio, MLflow and wandb.

The stack native-trackers has the packages of the first two. Values have the names of transformers'
Trainer: loss, learning_rate, grad_norm, epoch, and eval_ before a metric's name.

accelerate's trackers are not used: they end the MLflow run of a failed training as FINISHED, take
their metrics from one process-wide run, and differ between the versions of the stacks.
"""

import contextlib
import importlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from ftcluster_common.protocol.launch import TAGS_VARIABLE
from ftcluster_common.recipe import Training
from ftcluster_train.engine.tracker_packages import missing
from ftcluster_train.errors import TrainError, first_line

EXPERIMENT = "ftcluster"
MAX_PARAMETER = 250  # maximum characters; servers of older releases reject longer values
MLFLOW_SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # 3.17 rejects a folder without this
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # all ranks wait meanwhile; 7 would take minutes
}


class Tracker(Protocol):
    """One tracking tool."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values, by Trainer's names, after an optimizer step (0: before the first step)."""

    def close(self, failed: bool) -> None:
        """Flush, and record whether the training failed."""


class Trackers:
    """All trackers of a run. A failing tracker is closed with a notice; the training continues."""

    def __init__(self, trackers: Mapping[str, Tracker], notify: Callable[[str], None]) -> None:
        self._trackers = dict(trackers)
        self._notify = notify

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log to each tracker."""
        self._each(lambda tracker: tracker.log(step, values))

    def close(self, failed: bool = False) -> None:
        """Close each tracker; calling it again does nothing."""
        self._each(lambda tracker: tracker.close(failed))
        self._trackers.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # a server or a package may raise any exception
                del self._trackers[name]
                self._notify(f"logging to {name} stopped: {_without_password(error)}")


@dataclass(frozen=True)
class TrackedRun:
    """The training that trackers record as a run.

    Attributes:
        reports: folder for the files of trackers that have no server.
        name: name of the run.
        settings: the recipe's `training` and the user's tags.
    """

    reports: Path
    name: str
    settings: Mapping[str, Any]


def make_trackers(
    training: Training, run_dir: Path, run: str, notify: Callable[[str], None]
) -> Trackers:
    """Return the trackers of the recipe's report_to, with their files in `run_dir`/reports.

    Raises:
        TrainError: a package is not installed on this host, or its server or folder fails.
    """
    names = [training.report_to] if isinstance(training.report_to, str) else training.report_to
    tags = dict(word.split("=", 1) for word in os.environ.get(TAGS_VARIABLE, "").split())
    settings = {**asdict(training), **{f"tags.{name}": value for name, value in tags.items()}}
    tracked = TrackedRun(run_dir / "reports", training.run_name or run, settings)
    return Trackers(
        {name: STARTS[name](tracked) for name in dict.fromkeys(names) if name in STARTS}, notify
    )


class TensorBoard(Tracker):
    """Writes event files into the folder `tensorboard`."""

    def __init__(self, run: TrackedRun) -> None:
        folder = str(run.reports / "tensorboard")
        _import("tensorboard", "tensorboard")  # torch's module needs it
        module = _import("torch.utils.tensorboard", "tensorboard")
        with _starting("tensorboard", folder):
            self._writer = module.SummaryWriter(log_dir=folder)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write and flush values, so that viewers of the run see them."""
        for name, value in values.items():
            group, _, tag = name.partition("_") if name.startswith("eval_") else ("train", "", name)
            self._writer.add_scalar(f"{group}/{tag}", value, step)
        self._writer.flush()

    def close(self, failed: bool) -> None:  # noqa: ARG002 - event files have no field for it
        """Close the file."""
        self._writer.close()


class LoggedRun(Tracker):
    """Logs to a run that wandb's or trackio's `init` returned; they write in the background.

    Args:
        finish: function that writes the remaining values, and takes True if the training failed.
    """

    def __init__(self, run: Any, finish: Callable[[bool], None]) -> None:
        self._run, self._finish = run, finish

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values."""
        self._run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        """Write the remaining values."""
        self._finish(failed)


def _trackio(run: TrackedRun) -> LoggedRun:
    """Log to TRACKIO_DIR, by default the folder `trackio`, which needs no network.

    The project is TRACKIO_PROJECT, by default ftcluster. Its runs have no field for a failure.
    """
    # the import reads TRACKIO_DIR
    where = os.environ.setdefault("TRACKIO_DIR", str(run.reports / "trackio"))
    module = _import("trackio", "trackio")
    with _starting("trackio", where):
        started = module.init(
            project=os.environ.get("TRACKIO_PROJECT") or EXPERIMENT, name=run.name,
            config=dict(run.settings), resume="allow", auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
    return LoggedRun(started, lambda failed: started.finish())  # noqa: ARG005


def _wandb(run: TrackedRun) -> LoggedRun:
    """Log to the folder `wandb`, which `wandb sync` sends later.

    If WANDB_MODE is online, values are sent at once. The project is WANDB_PROJECT, by default
    ftcluster.
    """
    store = run.reports / "wandb"
    module = _import("wandb", "wandb")
    with _starting("wandb", str(store)):
        store.mkdir(parents=True, exist_ok=True)  # otherwise wandb uses the system's /tmp
        started = module.init(
            project=os.environ.get("WANDB_PROJECT") or EXPERIMENT, name=run.name, dir=str(store),
            config=dict(run.settings), mode=os.environ.get("WANDB_MODE") or "offline",
            settings=module.Settings(console="off"),  # mpirun already collects the ranks' output
        )  # fmt: skip
    return LoggedRun(started, lambda failed: started.finish(exit_code=int(failed)))


class MLflow(Tracker):
    """Logs to a run on the server MLFLOW_TRACKING_URI, by default in the folder `mlruns`.

    The experiment is MLFLOW_EXPERIMENT_NAME, by default ftcluster.
    """

    def __init__(self, run: TrackedRun) -> None:
        for variable, value in MLFLOW_SETTINGS.items():
            os.environ.setdefault(variable, value)
        tracking = _import("mlflow.tracking", "mlflow")
        self._entities = _import("mlflow.entities", "mlflow")
        store = run.reports / "mlruns"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or store.absolute().as_uri()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        with _starting("mlflow", uri):
            self._client = tracking.MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(experiment)
            number = known.experiment_id if known else self._client.create_experiment(experiment)
            self._run = self._client.create_run(number, run_name=run.name).info.run_id
            parameters = [
                self._entities.Param(key, str(value)[:MAX_PARAMETER])
                for key, value in run.settings.items()
            ]
            self._client.log_batch(self._run, params=parameters)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values with the current time."""
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


# starts a tracker, by its name in report_to; TrainError if its package, server or folder fails
STARTS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard, "trackio": _trackio, "mlflow": MLflow, "wandb": _wandb,
}  # fmt: skip


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(name, error) from error


@contextlib.contextmanager
def _starting(name: str, where: str) -> Iterator[None]:
    """Turn any exception of a package, its server or its folder into a TrainError."""
    try:
        yield
    except Exception as error:  # errors of packages and of the network have no common base
        raise TrainError(
            f"logging to {name} cannot start at {_without_password(where)}: "
            f"{_without_password(error)}",
            "check that place, or train without: training.report_to=none",
        ) from error


def _without_password(text: str | Exception) -> str:
    """Return the first line, without the password that a server's address may contain."""
    line = text if isinstance(text, str) else first_line(text)
    return re.sub(r"//[^/@\s]*@", "//", line)
