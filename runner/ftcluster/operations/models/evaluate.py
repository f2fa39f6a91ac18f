"""Evaluate a trained model on all hosts of a cluster."""

from dataclasses import dataclass
from typing import ClassVar

from ftcluster.errors import UsageError
from ftcluster.operations.models.trained import TrainedModelRequest, TrainedModelResult
from ftcluster.operations.train.train import speed
from ftcluster.progress.classes import class_lines
from ftcluster.progress.format import metrics
from ftcluster.progress.texts import text_lines, written_texts
from ftcluster.progress.view import View
from ftcluster_common.protocol.job import EVALUATE, Purpose
from ftcluster_common.recipe import Recipe


@dataclass(frozen=True)
class EvaluateRequest(TrainedModelRequest):
    """A request to evaluate a trained model."""

    purpose: ClassVar[Purpose] = EVALUATE

    def refusal(self, recipe: Recipe) -> UsageError | None:
        """Return an error if the model cannot be evaluated for the task; None otherwise."""
        reason = recipe.spec.why_not_evaluated(recipe.options, str(self.model))
        return UsageError(*reason) if reason else None


@dataclass(frozen=True)
class EvaluateResult(TrainedModelResult):
    """The metrics of a model; or the detached run that is still evaluating the model."""

    def finished_lines(self) -> list[str]:
        """Return the scores of each class, sample texts, the metrics and the speed."""
        result = self.progress.result
        of_all = [metrics(result["metrics"]), speed(self.progress, self.run)]
        return [*class_lines(result), *text_lines(written_texts(result, ())), *of_all]


def evaluate(request: EvaluateRequest, view: View) -> EvaluateResult:
    """Evaluate a model on the recipe's validation sets, or on all rows of a single data file.

    Raises:
        ClusterChanged: the cluster has changed since the run was planned. `again`
            retries the operation.
        FtclusterError: the request is not valid, or the run failed.
    """
    return EvaluateResult(*request.launched(view), str(request.model))
