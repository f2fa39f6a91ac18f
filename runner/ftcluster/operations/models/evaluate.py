"""Measures a trained model, over all hosts of a cluster."""

from dataclasses import dataclass, field, replace
from typing import Any

from ftcluster.errors import UsageError
from ftcluster.launch import training_run
from ftcluster.launch.hub_token import find_token
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.connection import cluster_of
from ftcluster.operations.train.plan import PlanResult
from ftcluster.operations.train.prepare import LaunchOptions, RecipeRequest, say_notes
from ftcluster.operations.train.train import speed
from ftcluster.progress.classes import class_documents, class_lines
from ftcluster.progress.format import metrics
from ftcluster.progress.state import RunProgress
from ftcluster.progress.texts import text_lines, written_texts
from ftcluster.progress.view import View
from ftcluster_common.protocol.job import EVALUATE, Purpose


@dataclass(frozen=True)
class TrainedModelRequest(RecipeRequest):
    """What a trained model, the request's `model`, is used for.

    Attributes:
        hub_token: whether the hosts may use the user's token for the Hugging Face Hub.
    """

    hub_token: bool = False
    launch: LaunchOptions = field(default_factory=lambda: LaunchOptions(max_restarts=3))

    def launchable(self, purpose: Purpose, view: View) -> TrainingRun:
        """The run that is asked for.

        Raises:
            FtclusterError: see `RecipeRequest.prepared`.
        """
        run = self.launch.applied_to(self.prepared(cluster_of(self.connection, view), purpose))
        if run.recipe.teacher:
            kind, recipe = run.recipe.spec.student
            raise UsageError(
                f"a distilled model is used as the {kind} that it is",
                f"ftcluster {purpose} {recipe} --model {self.model}",
            )
        return replace(run, hub_token=find_token() if self.hub_token else "")


@dataclass(frozen=True)
class EvaluateResult:
    """A model that was measured, or is by a run that goes on without its caller."""

    run: TrainingRun
    progress: RunProgress
    model: str

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics, by name."""
        return dict(self.progress.result.get("metrics", {}))

    @property
    def classes(self) -> dict[str, Any]:
        """How well each class is predicted, by the validation set, as in `--json`."""
        return class_documents(self.progress.result)

    def document(self) -> dict[str, Any]:
        """What `evaluate --json` prints."""
        progress, result = self.progress, self.progress.result
        running: dict[str, Any] = {"run": progress.run, "state": progress.state}
        if progress.state == "running":
            return running
        names = ("metrics", "samples_per_second", "world_size")
        measured = {name: result[name] for name in names}
        if texts := written_texts(result, ()):
            running["texts"] = texts
        about = {"model": self.model, "classes": self.classes, "seconds": progress.seconds}
        return {**running, **about, **measured}

    def lines(self) -> list[str]:
        """Metrics and speed; of a run that goes on, its id."""
        if self.progress.state == "running":
            return [self.progress.run]
        result = self.progress.result
        of_all = [metrics(result["metrics"]), speed(self.progress, self.run)]
        return [*class_lines(result), *text_lines(written_texts(result, ())), *of_all]


def dry_run(request: TrainedModelRequest, view: View) -> PlanResult:
    """What `evaluate` would launch. Raises as `evaluate`."""
    return PlanResult(_prepared(request, view))


def evaluate(request: TrainedModelRequest, view: View) -> EvaluateResult:
    """Measure a model on the recipe's validation sets, or on all rows of its data.

    Raises:
        ClusterChanged: the cluster is another one than it was planned for; see `again`.
        FtclusterError: the request is not valid, or the run failed.
    """
    run = _prepared(request, view)
    say_notes(run, view)
    progress = training_run.train(run, view, request.connection.to(run.cluster))
    return EvaluateResult(run, progress, str(request.model))


def _prepared(request: TrainedModelRequest, view: View) -> TrainingRun:
    run = request.launchable(EVALUATE, view)
    if reason := run.recipe.spec.why_not_evaluated(str(request.model)):
        raise UsageError(*reason)
    return run
