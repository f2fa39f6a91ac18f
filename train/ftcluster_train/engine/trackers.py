"""Logs a training's values to TensorBoard, trackio, MLflow and wandb.

The stack native-trackers has the packages of the first two. Values have the names of transformers'
Trainer: loss, learning_rate, grad_norm, epoch, and eval_ before a metric's name.

accelerate's trackers are not used: they end the MLflow run of a failed training as FINISHED, take
their metrics from one process-wide run, and differ between the versions of the stacks.
"""

import importlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ftcluster_common.protocol.launch import TAGS_VARIABLE
from ftcluster_common.recipe import Training
from ftcluster_train.engine.tracker_packages import missing
from ftcluster_train.errors import TrainError, first_line

EXPERIMENT = "ftcluster"
MAX_PARAMETER = 250  # characters; servers of older releases reject more
MLFLOW_SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # 3.17 refuses a folder without this
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # all ranks wait meanwhile; 7 would take minutes
}


class Tracker(Protocol):
    """One tracking tool."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values, by Trainer's names, after an optimizer step (0: before the first one)."""

    def close(self, failed: bool) -> None:
        """Flush, and record whether the training failed."""


class Trackers:
    """All trackers of a run. One that raises is closed with a notice; the training goes on."""

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
            except Exception as error:  # whatever a server or a package raises
                del self._trackers[name]
                self._notify(f"logging to {name} stopped: {_without_password(error)}")


def make_trackers(
    training: Training, run_dir: Path, run: str, notify: Callable[[str], None]
) -> Trackers:
    """The trackers of the recipe's report_to, with their files in `run_dir`/reports.

    Raises:
        TrainError: a package is not installed on this host, or its server or folder fails.
    """
    names = [training.report_to] if isinstance(training.report_to, str) else training.report_to
    trackers: dict[str, Tracker] = {}
    tags = dict(word.split("=", 1) for word in os.environ.get(TAGS_VARIABLE, "").split())
    settings = {**asdict(training), **{f"tags.{name}": value for name, value in tags.items()}}
    for name in dict.fromkeys(names):
        if name == "tensorboard":
            trackers[name] = TensorBoard(run_dir / "reports" / "tensorboard")
        elif name == "trackio":
            store = run_dir / "reports" / "trackio"
            trackers[name] = Trackio(store, training.run_name or run, settings)
        elif name == "mlflow":
            store = run_dir / "reports" / "mlruns"
            trackers[name] = MLflow(store, training.run_name or run, settings)
        elif name == "wandb":
            store = run_dir / "reports" / "wandb"
            trackers[name] = Wandb(store, training.run_name or run, settings)
    return Trackers(trackers, notify)


class TensorBoard(Tracker):
    """Writes event files.

    Raises:
        TrainError: the package tensorboard is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        _import("tensorboard", "tensorboard")  # torch's module needs it
        module = _import("torch.utils.tensorboard", "tensorboard")
        try:
            self._writer = module.SummaryWriter(log_dir=str(folder))
        except OSError as error:
            raise _start_error("tensorboard", str(folder), error) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write values, and flush them for those who watch the run."""
        for name, value in values.items():
            group, _, tag = name.partition("_") if name.startswith("eval_") else ("train", "", name)
            self._writer.add_scalar(f"{group}/{tag}", value, step)
        self._writer.flush()

    def close(self, failed: bool) -> None:  # noqa: ARG002 - event files have no field for it
        """Close the file."""
        self._writer.close()


class Trackio(Tracker):
    """Logs to a run of trackio, in TRACKIO_DIR or in the folder `store`; it needs no network.

    The project is TRACKIO_PROJECT, by default ftcluster.

    Raises:
        TrainError: the package is not installed, or its Space or folder fails.
    """

    def __init__(self, store: Path, name: str, settings: Mapping[str, Any]) -> None:
        where = os.environ.setdefault("TRACKIO_DIR", str(store))  # read by the import
        module = _import("trackio", "trackio")
        project = os.environ.get("TRACKIO_PROJECT") or EXPERIMENT
        try:
            self._run = module.init(
                project=project, name=name, config=dict(settings), resume="allow",
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        except Exception as error:  # SQLite's, the Hub's and ValueError have no common base
            raise _start_error("trackio", where, error) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values; a thread of trackio's writes them."""
        self._run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:  # noqa: ARG002 - its runs have no field for it
        """Write what is left."""
        self._run.finish()


class MLflow(Tracker):
    """Logs to a run in MLflow, on the server MLFLOW_TRACKING_URI or in the folder `store`.

    The experiment is MLFLOW_EXPERIMENT_NAME, by default ftcluster.

    Raises:
        TrainError: the package is not installed, or the server or folder fails.
    """

    def __init__(self, store: Path, name: str, settings: Mapping[str, Any]) -> None:
        for variable, value in MLFLOW_SETTINGS.items():
            os.environ.setdefault(variable, value)
        tracking = _import("mlflow.tracking", "mlflow")
        self._entities = _import("mlflow.entities", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or store.absolute().as_uri()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        try:
            self._client = tracking.MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(experiment)
            number = known.experiment_id if known else self._client.create_experiment(experiment)
            self._run = self._client.create_run(number, run_name=name).info.run_id
            parameters = [
                self._entities.Param(key, str(value)[:MAX_PARAMETER])
                for key, value in settings.items()
            ]
            self._client.log_batch(self._run, params=parameters)
        except Exception as error:  # MLflow's errors and those of the network have no common base
            raise _start_error("mlflow", uri, error) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values with the current time."""
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class Wandb(Tracker):
    """Logs to a run of wandb in the folder `store`, which `wandb sync` sends later.

    It sends at once where WANDB_MODE is online; the project is WANDB_PROJECT, by default ftcluster.

    Raises:
        TrainError: the package is not installed, or its server or folder fails.
    """

    def __init__(self, store: Path, name: str, settings: Mapping[str, Any]) -> None:
        module = _import("wandb", "wandb")
        try:
            store.mkdir(parents=True, exist_ok=True)  # else it takes the system's /tmp
            self._run = module.init(
                project=os.environ.get("WANDB_PROJECT") or EXPERIMENT, name=name, dir=str(store),
                config=dict(settings), mode=os.environ.get("WANDB_MODE") or "offline",
                settings=module.Settings(console="off"),  # mpirun has the ranks' output
            )  # fmt: skip
        except Exception as error:  # wandb's, OSError and those of the network
            raise _start_error("wandb", str(store), error) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values; a process of wandb's writes them."""
        self._run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        """Write what is left, and how the training ended."""
        self._run.finish(exit_code=int(failed))


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(name, error) from error


def _start_error(name: str, where: str, error: Exception) -> TrainError:
    return TrainError(
        f"logging to {name} cannot start at {_without_password(where)}: {_without_password(error)}",
        "check that place, or train without: training.report_to=none",
    )


def _without_password(text: str | Exception) -> str:
    """The first line, without the password that a server's address may have."""
    line = text if isinstance(text, str) else first_line(text)
    return re.sub(r"//[^/@\s]*@", "//", line)
