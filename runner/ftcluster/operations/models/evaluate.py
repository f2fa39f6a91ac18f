"""Measures a trained model, over all hosts of a cluster."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ftcluster.errors import UsageError
from ftcluster.launch.training_run import TrainingRun
from ftcluster.operations.models.trained import TrainedModelRequest
from ftcluster.operations.train.train import speed
from ftcluster.progress.classes import class_documents, class_lines
from ftcluster.progress.format import metrics
from ftcluster.progress.state import RunProgress
from ftcluster.progress.texts import text_lines, written_texts
from ftcluster.progress.view import View
from ftcluster_common.protocol.job import EVALUATE, Purpose
from ftcluster_common.recipe import Recipe


@dataclass(frozen=True)
class EvaluateRequest(TrainedModelRequest):
    """A model that is measured."""

    purpose: ClassVar[Purpose] = EVALUATE

    def refusal(self, recipe: Recipe) -> UsageError | None:
        """Refuse a model that its task cannot measure by itself."""
        reason = recipe.spec.why_not_evaluated(str(self.model))
        return UsageError(*reason) if reason else None


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
        """The scores of each class by validation set, as in `--json`."""
        return class_documents(self.progress.result)

    def document(self) -> dict[str, Any]:
        """Return the document that `evaluate --json` prints."""
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


def evaluate(request: EvaluateRequest, view: View) -> EvaluateResult:
    """Measure a model on the recipe's validation sets, or on all rows of its data.

    Raises:
        ClusterChanged: the cluster is another one than it was planned for; see `again`.
        FtclusterError: the request is not valid, or the run failed.
    """
    return EvaluateResult(*request.launched(view), str(request.model))
