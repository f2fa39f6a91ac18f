"""Log the values of a training run to TensorBoard, trackio, MLflow and wandb.

The stack native-trackers contains the packages for TensorBoard and trackio. Values have the same
names as in transformers' Trainer: loss, learning_rate, grad_norm, epoch, and metrics with the
prefix eval_.

accelerate's trackers are not used, for three reasons. They mark the MLflow run as FINISHED even if
training failed. They use one global run per process. And they differ between the versions of
accelerate in the stacks.
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
MAX_PARAMETER = 250  # maximum length of a value; older MLflow servers reject longer values
MLFLOW_SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # otherwise MLflow 3.17 rejects a folder
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # ranks wait for retries; the default 7 takes minutes
}


class Tracker(Protocol):
    """The interface of a tracker, such as MLflow."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step, with the names that transformers' Trainer uses.

        Args:
            step: number of optimizer steps so far; 0 before the first step.
        """

    def close(self, failed: bool) -> None:
        """Write all remaining values, and record whether the run failed."""


class Trackers:
    """All trackers of a run.

    If a tracker fails, it is closed, a notice is logged, and training continues.
    """

    def __init__(self, trackers: Mapping[str, Tracker], notify: Callable[[str], None]) -> None:
        self._trackers = dict(trackers)
        self._notify = notify

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values to each tracker."""
        self._each(lambda tracker: tracker.log(step, values))

    def close(self, failed: bool = False) -> None:
        """Close each tracker; a second call does nothing."""
        self._each(lambda tracker: tracker.close(failed))
        self._trackers.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # trackers may raise any exception
                del self._trackers[name]
                self._notify(f"logging to {name} stopped: {_without_password(error)}")


@dataclass(frozen=True)
class TrackedRun:
    """The data about a training run that a tracker needs to start its own run.

    Attributes:
        reports: folder for the files of trackers without a server.
        name: name of the run.
        settings: the section `training` of the recipe, and the user's tags.
    """

    reports: Path
    name: str
    settings: Mapping[str, Any]


def make_trackers(
    training: Training, run_dir: Path, run: str, notify: Callable[[str], None]
) -> Trackers:
    """Start the trackers of the recipe's report_to, and return them.

    Raises:
        TrainError: a tracker's package is not installed on this host, or its server or folder
            cannot be used.
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
        _import("tensorboard", "tensorboard")  # torch.utils.tensorboard needs this package
        module = _import("torch.utils.tensorboard", "tensorboard")
        with _starting("tensorboard", folder):
            self._writer = module.SummaryWriter(log_dir=folder)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write and flush values, so that viewers show them at once."""
        for name, value in values.items():
            group, _, tag = name.partition("_") if name.startswith("eval_") else ("train", "", name)
            self._writer.add_scalar(f"{group}/{tag}", value, step)
        self._writer.flush()

    def close(self, failed: bool) -> None:  # noqa: ARG002 - event files have no field for it
        """Close the file."""
        self._writer.close()


class LoggedRun(Tracker):
    """Logs to a run from the `init` function of wandb or trackio, which write in the background.

    Args:
        finish: function to call at the end; its argument is True if the run failed.
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
    """Start a trackio run in the folder TRACKIO_DIR, by default `trackio`; no network is needed.

    The project is TRACKIO_PROJECT, by default ftcluster. trackio cannot record that a run
    failed.
    """
    # set TRACKIO_DIR before the import, which reads it
    where = os.environ.setdefault("TRACKIO_DIR", str(run.reports / "trackio"))
    module = _import("trackio", "trackio")
    with _starting("trackio", where):
        started = module.init(
            project=os.environ.get("TRACKIO_PROJECT") or EXPERIMENT, name=run.name,
            config=dict(run.settings), resume="allow", auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
    return LoggedRun(started, lambda failed: started.finish())  # noqa: ARG005


def _wandb(run: TrackedRun) -> LoggedRun:
    """Start a wandb run in the folder `wandb`, which `wandb sync` can upload later.

    If WANDB_MODE is online, values are uploaded immediately. The project is WANDB_PROJECT, by
    default ftcluster.
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
            existing = self._client.get_experiment_by_name(experiment)
            number = (
                existing.experiment_id if existing else self._client.create_experiment(experiment)
            )
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


# functions that start trackers, by name in report_to; they raise TrainError if that fails
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
    except Exception as error:  # the packages and the network raise unrelated exceptions
        raise TrainError(
            f"logging to {name} cannot start at {_without_password(where)}: "
            f"{_without_password(error)}",
            "check this address or folder, or train without trackers: training.report_to=none",
        ) from error


def _without_password(text: str | Exception) -> str:
    """Return the first line of a message, without user names and passwords in addresses."""
    line = text if isinstance(text, str) else first_line(text)
    return re.sub(r"//[^/@\s]*@", "//", line)
