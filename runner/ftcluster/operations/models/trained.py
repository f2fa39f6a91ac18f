"""Using a trained model over all hosts of a cluster: what `evaluate` and `predict` share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ftcluster.errors import UsageError
from ftcluster.launch import training_run
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.train.plan import PlanResult
from ftcluster.operations.train.prepare import LaunchOptions, RecipeRequest, say_notes
from ftcluster.progress.state import RunProgress
from ftcluster.progress.view import View
from ftcluster_common.protocol.job import Purpose
from ftcluster_common.recipe import Recipe


@dataclass(frozen=True)
class TrainedModelRequest(RecipeRequest, ABC):
    """A request that uses a trained model, its `model`.

    Attributes:
        hub_token: whether the hosts may use the user's token for the Hugging Face Hub.
    """

    hub_token: bool = False
    launch: LaunchOptions = field(default_factory=lambda: LaunchOptions(max_restarts=3))

    purpose: ClassVar[Purpose]

    @abstractmethod
    def refusal(self, recipe: Recipe) -> UsageError | None:
        """Return the error for a recipe whose model is not used so; None for others."""

    def launchable(self, view: View) -> TrainingRun:
        """The run that is asked for.

        Raises:
            FtclusterError: see `RecipeRequest.prepared`.
        """
        run = self.launch.applied_to(self.prepared(cluster_of(self.connection, view), self.purpose))
        if run.recipe.teacher:
            kind, recipe = run.recipe.spec.student
            raise UsageError(
                f"a distilled model is used as the {kind} that it is",
                f"ftcluster {self.purpose} {recipe} --model {self.model}",
            )
        run = replace(run, hub_token=find_token() if self.hub_token else "")
        if refusal := self.refusal(run.recipe):
            raise refusal
        return run

    def launched(self, view: View) -> tuple[TrainingRun, RunProgress]:
        """Launch the run and follow it to its end.

        Raises:
            ClusterChanged: the cluster is another one than it was planned for; see `again`.
            FtclusterError: the request is not valid, or the run failed.
        """
        run = self.launchable(view)
        say_notes(run, view)
        return run, training_run.train(run, view, self.connection.to(run.cluster))


def dry_run(request: TrainedModelRequest, view: View) -> PlanResult:
    """Plan what the request would launch. Raises as `TrainedModelRequest.launchable`."""
    return PlanResult(request.launchable(view))
