"""The base classes of the requests and results of `evaluate` and `predict`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ftcluster.errors import UsageError
from ftcluster.launch import training_run
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.train.head_access import ensure_head_access
from ftcluster.operations.train.plan_result import PlanResult
from ftcluster.operations.train.prepare import LaunchOptions, RecipeRequest, say_notes
from ftcluster.progress.classes import class_documents
from ftcluster.progress.state import RunProgress
from ftcluster.progress.texts import written_texts
from ftcluster.progress.view import View
from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import Recipe


@dataclass(frozen=True)
class TrainedModelRequest(RecipeRequest, ABC):
    """A request to evaluate a trained model or to predict with it. `model` names the model.

    Attributes:
        hub_token: True if the hosts may use the user's token for the Hugging Face Hub.
    """

    hub_token: bool = False
    launch: LaunchOptions = field(default_factory=lambda: LaunchOptions(max_restarts=3))

    purpose: ClassVar[Purpose]

    @abstractmethod
    def refusal(self, recipe: Recipe) -> UsageError | None:
        """Return the error for a recipe whose model cannot be used this way; None otherwise."""

    def launchable(self, view: View) -> TrainingRun:
        """Return the run to launch for this request.

        Raises:
            FtclusterError: the run cannot be prepared, see `RecipeRequest.prepared`.
        """
        run = self.launch.applied_to(self.prepared(cluster_of(self.connection, view), self.purpose))
        if run.recipe.teacher:
            kind, recipe = run.recipe.spec.student
            raise UsageError(
                f"a distilled model needs a {kind} recipe, not the recipe of its distillation",
                f"ftcluster {self.purpose} {recipe} --model {self.model}",
            )
        run = replace(run, hub_token=find_token() if self.hub_token else "")
        if refusal := self.refusal(run.recipe):
            raise refusal
        return run

    def launched(self, view: View) -> tuple[TrainingRun, RunProgress]:
        """Launch the run and follow it to its end.

        Raises:
            ClusterChanged: the cluster has changed since the run was planned. `again`
                retries the operation.
            FtclusterError: the request is not valid, or the run failed.
        """
        run = self.launchable(view)
        connection_options = self.connection.to(run.cluster)
        ensure_head_access(run, connection_options, view)
        say_notes(run, view)
        return run, training_run.train(run, view, connection_options)


@dataclass(frozen=True)
class TrainedModelResult(ABC):
    """The result of an evaluation or a prediction.

    Attributes:
        run: the launched run. It is detached and continues if `progress.state` is "running".
        progress: the state that the run's events describe.
        model: the model as the user named it.
    """

    run: TrainingRun
    progress: RunProgress
    model: str

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics, by name."""
        return dict(self.progress.result.get("metrics", {}))

    @property
    def classes(self) -> dict[str, Any]:
        """The scores of each class by validation set, as in `--json`."""
        return class_documents(self.progress.result)

    def document(self) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        started = {"run": self.progress.run, "state": self.progress.state}
        if self.progress.state == "running":
            return started
        return {**started, **self.finished_document()}

    def finished_document(self) -> dict[str, Any]:
        """Return the fields of a finished run's document other than its id and state."""
        progress, result = self.progress, self.progress.result
        texts = written_texts(result, ())
        return {
            **({"texts": texts} if texts else {}),
            "model": self.model,
            "classes": self.classes,
            "seconds": progress.seconds,
            **{name: result[name] for name in ("metrics", "samples_per_second", "world_size")},
        }

    def lines(self) -> list[str]:
        """Return the result as text; for a detached run, its id."""
        if self.progress.state == "running":
            return [self.progress.run]
        return self.finished_lines()

    @abstractmethod
    def finished_lines(self) -> list[str]:
        """Return the result of a finished run as text."""


def dry_run(request: TrainedModelRequest, view: View) -> PlanResult:
    """Return the run that the request would launch. This raises the errors of `launchable`."""
    return PlanResult(request.launchable(view))
