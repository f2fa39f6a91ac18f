"""Losses and metrics for TensorBoard and MLflow, as the recipe's report_to asks; rank 0 makes them.

Neither package belongs to a stack. What a report is told are the names of transformers' Trainer:
loss, learning_rate, grad_norm, epoch, and eval_ before the name of a metric.
"""

import importlib
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ftcluster_common.recipe import Training
from ftcluster_train.errors import TrainError, first_line

EXPERIMENT = "ftcluster"
LONGEST_PARAMETER = 250  # characters; servers of older releases refuse more
MLFLOW_SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # 3.17 refuses a folder without this
    "MLFLOW_DISABLE_TELEMETRY": "true",  # hosts of a cluster call nobody
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # all ranks wait meanwhile; 7 would be minutes
}


class Writer(Protocol):
    """One kind of report."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take in what was measured after a step, by Trainer's names."""

    def close(self, failed: bool) -> None:
        """Write down what is not yet, and whether the training came to its end."""


class Reports:
    """All reports of a run, none of which can end it.

    Args:
        writers: by the name that the recipe has for them.
        notify: told once of each report that can no longer be written.
    """

    def __init__(self, writers: Mapping[str, Writer], notify: Callable[[str], None]) -> None:
        self._writers = dict(writers)
        self._notify = notify

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Report what was measured after optimizer step `step`.

        Args:
            step: from 1; 0 before the first one.
            values: by Trainer's names, such as loss and eval_accuracy.
        """
        self._each(lambda writer: writer.log(step, values))

    def close(self, failed: bool = False) -> None:
        """End the reports; calling it again does nothing.

        Args:
            failed: whether the training did not come to its end.
        """
        self._each(lambda writer: writer.close(failed))
        self._writers.clear()

    def _each(self, act: Callable[[Writer], None]) -> None:
        for name, writer in list(self._writers.items()):
            try:
                act(writer)
            # whatever a server or a package of another's says, the training is worth more
            except Exception as error:
                del self._writers[name]
                self._notify(f"the report to {name} ends here: {_open_words(error)}")


def make_reports(
    training: Training, run_dir: Path, run: str, notify: Callable[[str], None]
) -> Reports:
    """The reports that the recipe asks for, in `run_dir`/reports; only rank 0 calls it.

    Args:
        training: of the recipe.
        run_dir: the run's folder on this host.
        run: the run's id, its name in MLflow unless the recipe has one.
        notify: see Reports.

    Raises:
        TrainError: a package is not installed on this host, or its report cannot be begun.
    """
    asked = training.report_to
    names = [asked] if isinstance(asked, str) else list(dict.fromkeys(asked))
    writers: dict[str, Writer] = {}
    for name in names:
        if name == "tensorboard":
            writers[name] = TensorBoard(run_dir / "reports" / "tensorboard")
        elif name == "mlflow":
            store = run_dir / "reports" / "mlruns"
            writers[name] = MLflow(store, training.run_name or run, asdict(training))
    return Reports(writers, notify)


def tag(name: str) -> str:
    """The name of a value in TensorBoard, as Trainer has it.

    >>> tag("loss"), tag("eval_f1")
    ('train/loss', 'eval/f1')
    """
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"


class TensorBoard:
    """Event files for TensorBoard.

    Args:
        folder: where they are written.

    Raises:
        TrainError: the package tensorboard is not there, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        _import("tensorboard", "tensorboard", "tensorboard")  # torch has only its own half of it
        module = _import("torch.utils.tensorboard", "tensorboard", "tensorboard")
        try:
            self._writer = module.SummaryWriter(log_dir=str(folder))
        except OSError as error:
            raise _cannot_begin("tensorboard", str(folder), error) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Writer."""
        for name, value in values.items():
            self._writer.add_scalar(tag(name), value, step)
        self._writer.flush()  # who watches a run wants to see it now

    def close(self, failed: bool) -> None:  # noqa: ARG002 - event files have no word for it
        """See Writer."""
        self._writer.close()


class MLflow:
    """A run in MLflow, on the server MLFLOW_TRACKING_URI or in a folder.

    The experiment is MLFLOW_EXPERIMENT_NAME, or else ftcluster.

    Args:
        store: the folder, where the environment names no server.
        name: the run's.
        settings: what is noted down as the run's parameters.

    Raises:
        TrainError: the package is not there, or the server or folder does not take the run.
    """

    def __init__(self, store: Path, name: str, settings: Mapping[str, Any]) -> None:
        for variable, value in MLFLOW_SETTINGS.items():
            os.environ.setdefault(variable, value)
        tracking = _import("mlflow.tracking", "mlflow", "mlflow-skinny")
        self._entities = _import("mlflow.entities", "mlflow", "mlflow-skinny")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or store.absolute().as_uri()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        try:
            self._client = tracking.MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self._client.create_experiment(experiment)
            self._run = self._client.create_run(number, run_name=name).info.run_id
            parameters = [
                self._entities.Param(key, str(value)[:LONGEST_PARAMETER])
                for key, value in settings.items()
            ]
            self._client.log_batch(self._run, params=parameters)
        # its errors have no common base: those of the network come as they are
        except Exception as error:
            raise _cannot_begin("mlflow", uri, error) from error

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See Writer."""
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, failed: bool) -> None:
        """See Writer."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _import(module: str, name: str, package: str) -> Any:
    """A module of a package that no stack has.

    Raises:
        TrainError: it cannot be imported; says what to install, and where.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        host = socket.gethostname()
        raise TrainError(
            f"report_to: {name} needs the package {package}, which {host} has not: {error}",
            f"install it on {host}: {sys.executable} -m pip install {package}; "
            "or train without: training.report_to=none",
        ) from error


def _cannot_begin(name: str, where: str, error: Exception) -> TrainError:
    return TrainError(
        f"the report to {name} cannot be begun at {_open_words(where)}: {_open_words(error)}",
        "see to that place, or train without: training.report_to=none",
    )


def _open_words(said: str | Exception) -> str:
    """The first line of it, without the password that a server's address may have."""
    line = said if isinstance(said, str) else first_line(said)
    return re.sub(r"//[^/@\s]*@", "//", line)
